"""A program that is ordered: everything a compiler needs to know, in a form that another process reads.

Tracing and compiling patch torch's globals, so another thread cannot do it beside a serving one; a process of
its own can, and hands the code over as data.
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
"""What the process is given, and what it leaves."""


@dataclass(frozen=True)
class TensorMetadata:
    """What a compiler needs to know of a tensor."""

    size: tuple[int | SymExpr, ...]
    stride: tuple[int | SymExpr, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int | SymExpr = 0
    """Where it begins in its storage: windows count from there, and it says how memory is aligned."""

    def make(self, number: Any = int) -> torch.Tensor:
        """A tensor like this one; `number` says what its sizes are."""
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
    """Descriptions in place of tensors, on the device where each shall be; numbers stay."""
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
    """The numbers among these, and in the sizes of tensors, that are none yet."""
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
    """What came of an order: code, and what must hold of sizes for it to be right."""

    code: Code
    conditions: tuple[Any, ...] = ()


@dataclass(frozen=True)
class CompileRequest:
    """One program. The first of the code generators that can compile the graph does."""

    graph: bytes
    likes: list[Any]
    how: CodegenOptions
    kinds: tuple[str, ...] = ("inductor",)
    symbols: Symbols = field(default_factory=Symbols)
    surroundings: TorchState = field(default_factory=TorchState.now)
    root: str = ""
    """Of what is built; nothing but Inductor's own cache if there is none."""

    @property
    def folder(self) -> str:
        """Where kernels are kept; empty: in Inductor's own cache."""
        return os.path.join(self.root, KERNELS) if self.root else ""

    def fill(self) -> CompileResult:
        """Compile, or take what was compiled for the same order before."""
        errors: list[str] = []
        for kind in self.kinds:
            try:
                return self._filled(kind)
            except Exception as error:
                errors.append(f"{kind}: {type(error).__name__}: {first_line(error)}")
        raise NotPossible("no code generator can compile the graph", got="; ".join(errors))

    def _filled(self, kind: str) -> CompileResult:
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
        """The program that another process made of this order."""
        with BUILDING, code_kept_in(self.folder):
            return load(made.code)

    def is_tuned(self) -> bool:
        """Are there kernels to try out?"""
        return any(isinstance(like, TensorMetadata) and get_device(like.device).tuned for like in self.likes)

    def stand_ins(self) -> list[Any]:
        """Arguments to run the program with, zeros. Tensors that are alike are one: a model of many equal
        layers takes the memory of one.
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
    """Where one order is compiled: a folder of its own that stays, or a temporary one without a root."""
    if root:
        yield make_folder(Path(root), f"ts{now()}_pid{os.getpid()}_outputs")
        return
    folder = Path(tempfile.mkdtemp(prefix="order-", dir=builds().path))
    try:
        yield folder
    finally:  # whatever stays goes with the folder of the process
        shutil.rmtree(folder, ignore_errors=True)


def last_line(text: str) -> str:
    """What a process said last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def leave(made: CompileResult, folder: Path) -> None:
    """In the other process: hand it over."""
    with atomic_write(folder / MADE) as file:
        file.write(pack(made))
