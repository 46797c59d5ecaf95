"""A compile request: everything a compiler needs to know, in a form that another process can read.

Tracing and compiling patch torch's globals, so a thread cannot compile while another one serves. A worker
process can, and it returns the code as data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchair.backend.service.torch_state import TorchState
from torchair.codegen import BUILDING, CodegenOptions, build, load
from torchair.core.errors import NotPossible, first_line
from torchair.core.fingerprint.atomic_files import atomic_write
from torchair.core.processes.scratch_dir import builds
from torchair.core.program import Code, Program, code_of
from torchair.core.storage.serialization import pack
from torchair.core.sym_expr import SymExpr
from torchair.core.torch_private.compilers.inductor import code_kept_in
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, fake_tensor_prop, faking, load_graph
from torchair.core.torch_private.fake.symbol_table import Symbols
from torchair.debug.dumps.files import make_folder, now
from torchair.devices import get_device
from torchair.fxgraph.symbols import is_symbol

KERNELS = "static_kernel_cache"
ORDER, MADE = "order.pickle", "program.pack"
"""The files of a worker process: the request that it reads, and the result that it writes."""


@dataclass(frozen=True)
class TensorMetadata:
    """The metadata of a tensor that a compiler depends on."""

    size: tuple[int | SymExpr, ...]
    stride: tuple[int | SymExpr, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int | SymExpr = 0
    """The storage offset: `as_strided` counts from it, and the alignment depends on it."""

    def make(self, number: Any = int) -> torch.Tensor:
        """Create a tensor with this metadata; `number` evaluates its sizes."""
        sizes, strides = [number(n) for n in self.size], [number(n) for n in self.stride]
        made = torch.empty_strided(sizes, strides, dtype=self.dtype, device=self.device)
        if self.offset == 0:
            return made
        first = number(self.offset)
        last = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        memory = torch.empty(first + last + 1, dtype=self.dtype, device=self.device)
        return memory.as_strided(sizes, strides, first)


def tensor_metadata_of(
    args: Sequence[Any], where: Callable[[torch.device], torch.device] = lambda device: device
) -> list[Any]:
    """Replace tensors by their metadata, with `where` mapping their devices; numbers remain as they are."""
    return [
        TensorMetadata(
            _plain(arg.size()),
            _plain(arg.stride()),
            arg.dtype,
            where(arg.device),
            *_plain([arg.storage_offset()]),
        )
        if isinstance(arg, torch.Tensor)
        else _plain([arg])[0]
        for arg in args
    ]


def symbols_of(args: Sequence[Any]) -> list[torch.SymInt]:
    """Return the symbolic numbers among the arguments, and those in sizes, strides and storage offsets."""
    numbers = [
        number
        for value in args
        for number in (
            (*value.shape, *value.stride(), value.storage_offset())
            if isinstance(value, torch.Tensor)
            else (value,)
        )
    ]
    return [number for number in numbers if isinstance(number, torch.SymInt)]


def _plain(numbers: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(SymExpr(number.node.expr) if is_symbol(number) else number for number in numbers)


@dataclass(frozen=True)
class CompileResult:
    """The result of a request: code, and the conditions on sizes under which it is valid."""

    code: Code
    conditions: tuple[Any, ...] = ()


@dataclass(frozen=True)
class CompileRequest:
    """The request for one program. The first code generator in `kinds` that can compile the graph is used."""

    graph: bytes
    likes: list[Any]
    how: CodegenOptions
    kinds: tuple[str, ...] = ("inductor",)
    symbols: Symbols = field(default_factory=Symbols)
    surroundings: TorchState = field(default_factory=TorchState.now)
    root: str = ""
    """The build directory; if empty, only Inductor's own cache is written."""

    @property
    def folder(self) -> str:
        """The directory of compiled kernels; if empty, Inductor's own cache."""
        return os.path.join(self.root, KERNELS) if self.root else ""

    def fill(self) -> CompileResult:
        """Compile the graph; raise `NotPossible` if no code generator can."""
        errors: list[str] = []
        for kind in self.kinds:
            try:
                return self._compile(kind)
            except Exception as error:
                errors.append(f"{kind}: {type(error).__name__}: {first_line(error)}")
        raise NotPossible("no code generator can compile the graph", got="; ".join(errors))

    def _compile(self, kind: str) -> CompileResult:
        world = self.symbols.world()
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=world.env)
        gm = load_graph(self.graph, mode)
        with torch.no_grad():
            with faking(mode):
                inputs = [
                    like.make(world.number) if isinstance(like, TensorMetadata) else world.number(like)
                    for like in self.likes
                ]
            fake_tensor_prop(gm, mode, inputs)
            program = build(kind, gm, inputs, replace(self.how, folder=self.folder))
        return CompileResult(code_of(program), world.conditions())

    def load(self, made: CompileResult) -> Program:
        """Load the program that a worker process compiled for this request."""
        with BUILDING, code_kept_in(self.folder):
            return load(made.code)

    def is_tuned(self) -> bool:
        """Whether any input is on a device with kernels to autotune."""
        return any(isinstance(like, TensorMetadata) and get_device(like.device).tuned for like in self.likes)

    def stand_ins(self) -> list[Any]:
        """Return arguments of zeros to run the program with. Inputs with equal metadata share one tensor, so
        a model of many equal layers needs the memory of one layer.
        """
        examples = {seen.symbol: seen.example for seen in self.symbols.seen}

        def number(value: int | SymExpr) -> int:
            return int(value.expr.xreplace(examples)) if isinstance(value, SymExpr) else value

        made = {like: like.make(number) for like in self.likes if isinstance(like, TensorMetadata)}
        for tensor in made.values():
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).zero_()
        return [made[like] if isinstance(like, TensorMetadata) else number(like) for like in self.likes]


@contextlib.contextmanager
def workplace(root: str) -> Iterator[Path]:
    """Yield the build directory of one request: a new one below `root` that remains, or a temporary one."""
    if root:
        yield make_folder(Path(root), f"ts{now()}_pid{os.getpid()}_outputs")
        return
    folder = Path(tempfile.mkdtemp(prefix="order-", dir=builds().path))
    try:
        yield folder
    finally:  # the scratch directory of this process removes whatever remains
        shutil.rmtree(folder, ignore_errors=True)


def last_line(text: str) -> str:
    """Return the last nonempty line of a process's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def leave(made: CompileResult, folder: Path) -> None:
    """Write the result, in the worker process."""
    with atomic_write(folder / MADE) as file:
        file.write(pack(made))
