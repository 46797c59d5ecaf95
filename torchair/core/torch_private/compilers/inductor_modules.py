"""Modules that Inductor generated, as data: loaded again without Inductor's compiler."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import BoxedBool
from torch.utils._ordered_set import OrderedSet

from torchair.core.fingerprint.atomic_files import PRIVATE_MODE, atomic_write, below
from torchair.core.lazy_module import LazyModule

_codecache: Any = LazyModule("torch._inductor.codecache")
_output_code: Any = LazyModule("torch._inductor.output_code")
_triton: Any = LazyModule("torch._inductor.triton_bundler")
_folders: Any = LazyModule("torch._inductor.runtime.cache_dir_utils")
_choices: Any = LazyModule("torch._inductor.runtime.autotune_cache")
_TUNERS = "torch._inductor.runtime.triton_heuristics"

LIGHTER = {
    "from torch._inductor.codegen.memory_planning import _align as align": (
        "from torch._inductor.utils import _align as align"
    ),
    "from torch._inductor.select_algorithm import extern_kernels": "import torch as extern_kernels",
}
"""Lines at the head of a generated module that import all of Inductor, a second of it, for one name;
and where else that name is.
"""
OF_TORCH = frozenset({"_int_mm", "_scaled_mm", "addmm", "baddbmm", "bmm", "convolution", "mm"})
"""Of Inductor's `extern_kernels`, those that are functions of torch."""
BUILT_IN = frozenset({"_quantized", "aten", "inductor", "mkl", "mkldnn"})
"""Namespaces of operators that need no import."""

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
        path = below(cache_dir(), self.path)
        if not path.exists() and (self.content is not None or Path(self.root, self.path).exists()):
            _write(path, self._read())

    def _read(self) -> bytes:
        return Path(self.root, self.path).read_bytes() if self.content is None else self.content


@dataclass
class GeneratedModule:
    """All but the text: what the module is called, the tensors among its globals, the inputs that are copied
    where they are not aligned, and what it loads. Packed, it has the kernels of Triton as they are then: once
    they have run, the fastest of each alone, and which that is.
    """

    key: str
    lines: list[Any]
    constants: dict[str, Any]
    checked: tuple[int, ...]
    written: tuple[int, ...]
    aligns_itself: bool
    files: tuple[CodeFile, ...]
    kernels: tuple[Any, ...] = ()
    """Of Triton: hash, device, and the names and contents of files."""
    choices: tuple[tuple[str, bytes], ...] = ()
    """The file of a kernel, by its place below Inductor's directory, and which form of it was the fastest."""
    scope: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    """The globals of the module, where it is loaded in this process."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | _compiled_kernels(self.scope) | {"scope": {}}

    @staticmethod
    def of(compiled: Any) -> GeneratedModule:
        """Of what `compile_fx_inner` returned."""
        path = _codecache.get_path(compiled.cache_key, "py")[2]
        modules = reversed(_codecache.PyCodeCache.modules)
        scope = next((vars(module) for module in modules if module.__file__ == path), {})
        return GeneratedModule(
            key=compiled.cache_key,
            lines=list(compiled.cache_linemap or ()),
            constants=_globals_of(compiled),
            checked=tuple(compiled.inputs_to_check),
            written=tuple(compiled.mutated_input_idxs),
            aligns_itself=getattr(compiled, "_defers_input_alignment", False),
            files=tuple(_libraries(scope)),
            scope=scope,
        )

    def load(self, source: str) -> Run:
        """The function in the module with this text."""
        for file in self.files:
            file.place()
        for kernel, choice in self.choices:
            _write(_choice_of(str(below(cache_dir(), kernel))), choice)
        if self.kernels:
            _triton.TritonBundler.read_and_emit(
                _triton.TritonBundle([_artefacts(*kernel) for kernel in self.kernels], [])
            )
        key = f"{self.key}_light"
        path = Path(_codecache.get_path(key, "py")[2])
        if not path.exists():
            _write(path, _light(source).encode())
        module = _codecache.PyCodeCache.load_by_key_path(key, str(path), self.lines, self.constants)
        self.scope = vars(module)
        held = SimpleNamespace(current_callable=module.call, _defers_input_alignment=self.aligns_itself)
        _output_code.maybe_realign_inputs(
            BoxedBool(False), held, list(self.checked), OrderedSet(self.written)
        )
        return held.current_callable


def _light(source: str) -> str:
    """The same module without the compiler, unless it uses kernels or ops that the compiler defines."""
    code = re.sub("#.*", "", source)  # comments name the ops that a kernel was made of
    kernels = set(re.findall(r"\bextern_kernels\.([\w.]+)", code))
    namespaces = set(re.findall(r"\btorch\.ops\.(\w+)", code))
    if not (kernels <= OF_TORCH and namespaces <= BUILT_IN):
        return source
    for line, lighter in LIGHTER.items():
        source = source.replace(f"\n{line}\n", f"\n{lighter}\n", 1)
    return source


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, PRIVATE_MODE) as file:
        file.write(content)


def _globals_of(compiled: Any) -> dict[str, Any]:
    """Tensors and other objects that the module is given."""
    kinds = ("constants", "torchbind_constants", "opaque_value_type_classes")
    return {name: value for kind in kinds for name, value in (getattr(compiled, kind, None) or {}).items()}


def _libraries(scope: Mapping[str, Any]) -> Iterator[CodeFile]:
    """The shared libraries with kernels for the CPU."""
    root = os.path.realpath(cache_dir())
    for value in scope.values():
        owner = getattr(value, "__self__", None)
        path = os.path.realpath(getattr(owner, "__file__", None) or "")
        if isinstance(owner, ModuleType) and path.startswith(root + os.sep):
            yield CodeFile(os.path.relpath(path, root), root)


def _compiled_kernels(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels of Triton in a module, and where it is written which were chosen; nothing where there are
    none, or what was compiled is not kept any more.
    """
    if _TUNERS not in sys.modules:
        return {}
    kind: Any = sys.modules[_TUNERS].CachingAutotuner
    tuners = [value for value in scope.values() if isinstance(value, kind)]
    folders = {
        launcher.cache_hash: (tuner.triton_meta.get("device", 0), launcher.cache_hash)
        for tuner in tuners
        for launcher in tuner.launchers
    }
    kernels = [_kernel(device, name) for device, name in folders.values()]
    if not kernels or not all(kernels):
        return {}
    hooks = [(tuner.filename, getattr(tuner.save_cache_hook, "__self__", None)) for tuner in tuners]
    written = {
        name: Path(cache.local_cache[1]) for name, cache in hooks if cache is not None and cache.local_cache
    }
    choices = [
        (str(Path(name).relative_to(Path(name).parents[1])), path.read_bytes())
        for name, path in sorted(written.items())
        if path.exists()
    ]
    return {"kernels": tuple(kernels), "choices": tuple(choices)}


def _choice_of(kernel: str) -> Path:
    """Where this process looks for what was chosen: the name has in it what else Inductor's caches depend on,
    and while a program is built that is more than when it is loaded.
    """
    cache = _choices.AutotuneCache.create({"autotune_remote_cache": False, "is_fbcode": False}, kernel, "")
    return Path(cache.local_cache[1])


def _kernel(device: int, name: str) -> tuple[Any, ...] | None:
    """What Triton keeps of it, without the place where that lies; None where it does not."""
    folder = Path(_folders.triton_cache_dir(device), name)
    if not folder.is_dir():
        return None
    here, anywhere = os.fsencode(folder), _triton.TritonBundler._REPLACE_BYTES
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    files = [
        (name, content.replace(here, anywhere) if name.endswith(".json") else content)
        for name, content in contents.items()
    ]
    return name, device, tuple(files)


def _artefacts(kernel_hash: str, device: int, files: Any) -> Any:
    for name in (kernel_hash, *(name for name, _ in files)):
        below(cache_dir(), name)
    return _triton.TritonKernelArtifacts(
        kernel_hash, device, [_triton.TritonKernelArtifact(*file) for file in files]
    )
