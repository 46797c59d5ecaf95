"""Gears: an input whose dimension has one of a few sizes. One graph is traced for all of them, guards let in
just these sizes, and each has a program of its own, compiled for its sizes when it first comes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchair.backend.service.request import TensorMetadata, tensor_metadata_of
from torchair.backend.specialize.static_shapes import specialised
from torchair.capture import PendingProgram
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.capture.base.output_buffers import MaxSizes
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadGears, first_line
from torchair.core.program import Program
from torchair.core.torch_private.compilers.aot_autograd import mark_dynamic
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, fake_tensor_prop, faking
from torchair.fxgraph.layout import Layout, layout_of
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Binding, Reader, Unreadable, is_symbol

NAME = "dim_gears"
"""The attribute of a tensor that holds its gears."""
FEWEST, MOST = 2, 100

DimGears = Mapping[int, Sequence[int]]
Row = tuple[tuple[Any, int], ...]
"""One gear: the size of each symbol."""


def set_dim_gears(t: torch.Tensor, dim_gears: dict[int, Sequence[int]]) -> None:
    """Say which sizes dimensions of an input will have. To be said of the inputs of the first call, which is
    compiled in graph mode with `dynamic=True`; later calls have any of these sizes.
    """
    if not isinstance(t, torch.Tensor):
        raise BadGears("gears are those of a tensor", got=type(t).__name__)
    if not isinstance(dim_gears, dict):
        raise BadGears("gears are a dict of dimensions and their sizes", got=type(dim_gears).__name__)
    if not dim_gears:
        raise BadGears("the gears name no dimension", got="{}", next="give its sizes: {0: [2, 4]}")
    known = getattr(t, NAME, None)
    if known is not None and known != _listed(dim_gears):
        raise BadGears("the tensor has other gears already", got=f"{dim_gears} and before {known}")
    for dim, sizes in dim_gears.items():
        _check(t, dim, sizes)
    for dim, sizes in dim_gears.items():
        # Torch makes no symbol of a size of 0 or 1: such a call is compiled for itself. Where one other size
        # is left, it is a number in the graph, which torch refuses where the dimension is marked.
        if t.size(dim) > 1 and len({size for size in sizes if size > 1}) > 1:
            mark_dynamic(t, dim)
    setattr(t, NAME, _listed(dim_gears))


def _listed(dim_gears: dict[int, Sequence[int]]) -> dict[int, Any]:
    """A copy, with tuples and lists alike."""
    pairs = dim_gears.items()
    return {dim: list(sizes) if isinstance(sizes, list | tuple) else sizes for dim, sizes in pairs}


def _check(t: torch.Tensor, dim: Any, sizes: Any) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise BadGears("a dimension is an int", got=repr(dim))
    if not 0 <= dim < t.dim():
        raise BadGears("the tensor has no such dimension", got=str(dim), near=f"0 to {t.dim() - 1}")
    if not isinstance(sizes, list | tuple):
        raise BadGears(f"the gears of dimension {dim} are a list or a tuple", got=type(sizes).__name__)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size <= 0]
    if wrong:
        raise BadGears(f"the gears of dimension {dim} are sizes of 1 and more", got=repr(wrong[0]))
    # A size may come twice: with gears of another input, the entries of one place are one gear.
    if not FEWEST <= len(sizes) <= MOST:
        raise BadGears(f"a dimension has {FEWEST} to {MOST} gears", got=f"{len(sizes)} of dimension {dim}")


@dataclass(frozen=True)
class Gears:
    """The sizes that a graph is compiled for."""

    rows: tuple[Row, ...]

    def __contains__(self, row: Row) -> bool:
        return row in self.rows

    def of(self, args: Sequence[Any], binding: Binding) -> Row:
        """The gear of a call; none of ours where its arguments do not tell."""
        values = binding.reader(args).values
        return tuple((symbol, values.get(symbol, 0)) for symbol, _ in self.rows[0])


def room_of(gears: Gears, inputs: Sequence[Any], layouts: Sequence[Layout | None]) -> MaxSizes:
    """The bytes that inputs, and outputs of their own memory, take in the largest of these gears."""
    largest = [row for row in gears.rows if not any(_is_below(row, other) for other in gears.rows)]
    readers = [Reader(dict(row)) for row in largest]
    tensors = {
        place: replace(layout_of(value), offset=0)
        for place, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }
    # Together, what lies in one storage: it has the bytes up to the last element of any.
    storages: dict[int, int] = {}
    owned = {place: layout for place, layout in enumerate(layouts) if layout and layout.base is None}
    for layout in owned.values():
        reach = max(_reach(layout, read) for read in readers)
        storages[layout.storage] = max(reach, storages.get(layout.storage, 0))
    return MaxSizes(
        {place: max(_reach(layout, read) for read in readers) for place, layout in tensors.items()},
        {place: storages[layout.storage] for place, layout in owned.items()},
    )


def _is_below(row: Row, other: Row) -> bool:
    """Is another gear as large in every size, and larger in one?"""
    pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(row, other, strict=True)]
    return row != other and all(mine <= theirs for mine, theirs in pairs)


def _reach(layout: Layout, read: Reader) -> int:
    """Bytes up to the last element; 0 where there is none, or nobody knows."""
    try:
        sizes, strides, start = map(read, layout.sizes), map(read, layout.strides), read(layout.offset)
        pairs = list(zip(sizes, strides, strict=True))
    except Unreadable:
        return 0
    if any(size == 0 for size, _ in pairs):
        return 0
    last = sum((size - 1) * step for size, step in pairs)
    return (start + last + 1) * layout.dtype.itemsize


def has_gears(inputs: Sequence[Any]) -> bool:
    """Are gears set on one of these?"""
    return any(getattr(value, NAME, None) for value in inputs)


def gears_of(
    gm: fx.GraphModule, inputs: Sequence[Any], policy: str, degradations: Diagnostics
) -> Gears | None:
    """The gears of the inputs of Dynamo's graph, none where none are set; from here on, guards let in just
    these sizes, and for all other dimensions the sizes of this call.
    """
    if not has_gears(inputs):
        return None
    tensors = sorted(_tensors(gm, inputs), key=lambda each: each[0])
    dims = [
        (name, known.shape[dim], sizes)
        for name, given, known in tensors
        for dim, sizes in sorted(getattr(given, NAME, {}).items())
    ]
    dynamic = [(name, size, sizes) for name, size, sizes in dims if isinstance(size, torch.SymInt)]
    if not dynamic:
        if all(size in (0, 1) for _, size, _ in dims):
            degradations.add(
                "a call of size 1 is compiled for itself, and its gears are not those of other calls",
                next="set them also on the inputs of the first call with a larger size",
                here=True,
            )
            return None
        raise BadGears("no dimension with gears is dynamic", next="compile with dynamic=True")
    for name, size, sizes in dynamic:
        _guard(name, size, sorted({number for number in sizes if number > 1}))
    geared = {symbol for _, size, _ in dynamic for symbol in size.node.expr.free_symbols}
    for _, _, known in tensors:
        for size in known.shape:
            if is_symbol(size) and not size.node.expr.free_symbols & geared:
                int(size)
    rows = _rows(dynamic, policy)
    return Gears(rows) if geared else None  # where one size is left of each, the graph has no others


def _tensors(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Of each tensor its name, itself, and what Dynamo knows of it."""
    pairs = zip(placeholders(gm), inputs, strict=True)
    return [
        (node.name, given, node.meta.get("example_value", given))
        for node, given in pairs
        if isinstance(given, torch.Tensor)
    ]


def _guard(name: str, size: torch.SymInt, sizes: Sequence[int]) -> None:
    """Pairs of neighbours, as one condition of many sizes is more than torch can read."""
    now = int(size.node.hint)
    if now not in sizes:
        raise BadGears(f"a dimension of {name} has none of its gears", got=f"{now} of {list(sizes)}")
    is_admitted = bool(size >= sizes[0]) and bool(size <= sizes[-1])
    for left, right in itertools.pairwise(sizes):
        is_admitted = is_admitted and bool((size <= left) | (size >= right))
    assert is_admitted, "the size of this call is a gear"


def _rows(dims: Sequence[tuple[str, torch.SymInt, Sequence[int]]], policy: str) -> tuple[Row, ...]:
    """How the gears of several dimensions combine."""
    lists = [sizes for _, _, sizes in dims]
    if policy == "zip" and len({len(sizes) for sizes in lists}) > 1:
        lengths = ", ".join(f"{len(sizes)} of {name}" for name, _, sizes in dims)
        raise BadGears("gears that are taken together are equally many", got=lengths, next=PRODUCT)
    combined = zip(*lists, strict=True) if policy == "zip" else itertools.product(*lists)
    rows: dict[Row, None] = {}
    for sizes in combined:
        row: dict[Any, int] = {}
        # A symbol that two dimensions share has one size, and so has what is a number by now.
        fits = [_fits(size.node.expr, number, row) for (_, size, _), number in zip(dims, sizes, strict=True)]
        if all(fits):
            rows[tuple(row.items())] = None
        if len(rows) > MOST:
            raise BadGears(f"there are more than {MOST} gears", got=f"policy {policy!r}")
    return tuple(rows)


def _fits(expr: Any, number: int, row: dict[Any, int]) -> bool:
    return row.setdefault(expr, number) == number if expr.free_symbols else expr == number


PRODUCT = "inference_config.dynamic_gears_merge_policy = 'product' takes each with each"

Make = Callable[[fx.GraphModule, list[Any], FakeTensorMode], Program]
"""Compiles a graph of fixed sizes, with these fake inputs."""


@dataclass(frozen=True)
class GearPrograms:
    """Programs for the gears of one graph."""

    gm: fx.GraphModule
    gears: Gears
    binding: Binding
    contract: OutputLayouts
    degradations: Diagnostics
    make: Make
    lost_in_pieces: str = "a graph with gears is recorded in pieces, by the program for all sizes"

    def __call__(self, key: Hashable, args: Sequence[Any]) -> PendingProgram | None:
        """The program of this key; None where the sizes are no gear, which the common program serves."""
        return (
            GearProgram(self, tensor_metadata_of(args))
            if self.gears.of(args, self.binding) in self.gears
            else None
        )


class GearProgram(PendingProgram):
    """One program, compiled by who takes it."""

    def __init__(self, programs: GearPrograms, likes: Sequence[TensorMetadata | Any]) -> None:
        super().__init__()
        self._programs, self._likes = programs, likes
        self.is_done.set()

    def take(self) -> Program | None:
        """For these sizes; None where that fails, which is told."""
        programs = self._programs
        try:
            made = specialised(programs.gm, self._likes)
            mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
            with faking(mode):
                inputs = [like.make() if isinstance(like, TensorMetadata) else like for like in self._likes]
            fake_tensor_prop(made, mode, inputs)
            program = programs.make(made, inputs, mode)
        except Exception as error:
            what = f"a gear is served by the program for all sizes: {first_line(error)}"
            programs.degradations.add(what, here=True)
            return None
        return LayoutEnforcer(program, programs.contract, (), programs.degradations)
