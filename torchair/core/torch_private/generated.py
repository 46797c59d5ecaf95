"""Modules that Inductor generated, as data: loaded again without Inductor's compiler."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import BoxedBool
from torch.utils._ordered_set import OrderedSet

from torchair.core.files import PRIVATE_MODE, whole_file
from torchair.core.torch_private.late_module import LateModule

_codecache: Any = LateModule("torch._inductor.codecache")
_output_code: Any = LateModule("torch._inductor.output_code")
_triton: Any = LateModule("torch._inductor.triton_bundler")

Run = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class CodeFile:
    """A file that generated code loads, by its place below Inductor's directory; packed, its content."""

    path: str
    root: str
    """Inductor's directory when it was made: builds may have one of their own."""
    content: bytes | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "root": "", "content": self._read()}

    def place(self) -> None:
        """Put it where the code looks for it, unless it is there."""
        path = Path(cache_dir(), self.path)
        if not path.exists() and (self.content is not None or Path(self.root, self.path).exists()):
            _write(path, self._read())

    def _read(self) -> bytes:
        return Path(self.root, self.path).read_bytes() if self.content is None else self.content


@dataclass(frozen=True)
class GeneratedModule:
    """All but the text: what the module is called, the tensors among its globals, the inputs that are copied
    where they are not aligned, and the compiled kernels that it loads.
    """

    key: str
    lines: list[Any]
    constants: dict[str, Any]
    checked: tuple[int, ...]
    written: tuple[int, ...]
    aligns_itself: bool
    files: tuple[CodeFile, ...]
    kernels: tuple[Any, ...]
    """Of Triton: hash, device, and the names and contents of files."""

    @staticmethod
    def of(compiled: Any) -> GeneratedModule:
        """Of what `compile_fx_inner` returned."""
        bundle = getattr(compiled, "_triton_bundle", None)
        return GeneratedModule(
            key=compiled.cache_key,
            lines=list(compiled.cache_linemap or ()),
            constants=_globals_of(compiled),
            checked=tuple(compiled.inputs_to_check),
            written=tuple(compiled.mutated_input_idxs),
            aligns_itself=getattr(compiled, "_defers_input_alignment", False),
            files=tuple(_libraries(compiled)),
            kernels=tuple(map(_kernel, bundle.kernel_artifacts)) if bundle is not None else (),
        )

    def load(self, source: str) -> Run:
        """The function in the module with this text."""
        for file in self.files:
            file.place()
        if self.kernels:
            _triton.TritonBundler.read_and_emit(
                _triton.TritonBundle([_artefacts(*kernel) for kernel in self.kernels], [])
            )
        path = Path(_codecache.get_path(self.key, "py")[2])
        if not path.exists():
            _write(path, source.encode())
        module = _codecache.PyCodeCache.load_by_key_path(self.key, str(path), self.lines, self.constants)
        held = SimpleNamespace(current_callable=module.call, _defers_input_alignment=self.aligns_itself)
        _output_code.maybe_realign_inputs(
            BoxedBool(False), held, list(self.checked), OrderedSet(self.written)
        )
        return held.current_callable


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, PRIVATE_MODE) as file:
        file.write(content)


def _globals_of(compiled: Any) -> dict[str, Any]:
    """Tensors and other objects that the module is given."""
    kinds = ("constants", "torchbind_constants", "opaque_value_type_classes")
    return {name: value for kind in kinds for name, value in (getattr(compiled, kind, None) or {}).items()}


def _libraries(compiled: Any) -> Iterator[CodeFile]:
    """The shared libraries with kernels for the CPU."""
    runner = compiled.compiled_fn_runner
    function = compiled.current_callable if runner is None else type(runner).call
    root = os.path.realpath(cache_dir())
    for value in getattr(function, "__globals__", {}).values():
        owner = getattr(value, "__self__", None)
        path = os.path.realpath(getattr(owner, "__file__", None) or "")
        if isinstance(owner, ModuleType) and path.startswith(root + os.sep):
            yield CodeFile(os.path.relpath(path, root), root)


def _kernel(artefacts: Any) -> tuple[Any, ...]:
    files = tuple((file.filename, file.payload) for file in artefacts.artifacts)
    return artefacts.kernel_hash, artefacts.device, files


def _artefacts(kernel_hash: str, device: int, files: Any) -> Any:
    return _triton.TritonKernelArtifacts(
        kernel_hash, device, [_triton.TritonKernelArtifact(*file) for file in files]
    )
