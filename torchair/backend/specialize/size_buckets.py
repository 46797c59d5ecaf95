"""Gears: size buckets of an input dimension.

One graph is traced for all sizes, its guards accept exactly these sizes, and each size has its own program,
which is compiled at the first call of that size.
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
"""The tensor attribute that stores the gears."""
FEWEST, MOST = 2, 100
USAGE = "for example: set_dim_gears(x, {0: [2, 4, 8]})"

DimGears = Mapping[int, Sequence[int]]
Row = tuple[tuple[Any, int], ...]
"""One gear: pairs of a symbol and its size."""


def set_dim_gears(t: torch.Tensor, dim_gears: dict[int, Sequence[int]]) -> None:
    """Declare the sizes that dimensions of an input can have.

    Call it on the inputs of the first call, which is compiled in graph mode with `dynamic=True`. Later calls
    may have any of these sizes, and each size gets its own program.

    Args:
        t: An input of the model.
        dim_gears: The sizes of each dimension, 2 to 100 of them.

    Raises:
        BadGears: An argument is invalid, or the tensor already has different gears.

    Example:
        >>> x = torch.randn(2, 16)
        >>> set_dim_gears(x, {0: [2, 4, 8]})
        >>> torch.compile(model, backend="npu", dynamic=True)(x)
    """
    if not isinstance(t, torch.Tensor):
        raise BadGears(
            "set_dim_gears() expects a torch.Tensor as its first argument", got=type(t).__name__, next=USAGE
        )
    if not isinstance(dim_gears, dict):
        raise BadGears("'dim_gears' must be a dict of dimensions and sizes", got=repr(dim_gears), next=USAGE)
    if not dim_gears:
        raise BadGears("'dim_gears' is an empty dict", next=USAGE)
    known = getattr(t, NAME, None)
    if known is not None and known != _as_lists(dim_gears):
        raise BadGears(
            "the tensor already has different gears",
            got=f"{dim_gears}, previously {known}",
            next="pass the same gears, or set them on another tensor",
        )
    for dim, sizes in dim_gears.items():
        _check(t, dim, sizes)
    for dim, sizes in dim_gears.items():
        # Torch specializes on sizes 0 and 1, so such a call is compiled separately. If only one other size is
        # left, it is a constant in the graph, and torch raises an error if the dimension is marked dynamic.
        if t.size(dim) > 1 and len({size for size in sizes if size > 1}) > 1:
            mark_dynamic(t, dim)
    setattr(t, NAME, _as_lists(dim_gears))


def _as_lists(dim_gears: dict[int, Sequence[int]]) -> dict[int, Any]:
    """Copy the gears, with tuples as lists, so that copies can be compared."""
    pairs = dim_gears.items()
    return {dim: list(sizes) if isinstance(sizes, list | tuple) else sizes for dim, sizes in pairs}


def _check(t: torch.Tensor, dim: Any, sizes: Any) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise BadGears("a dimension in 'dim_gears' must be an int", got=repr(dim), next=USAGE)
    if not 0 <= dim < t.dim():
        raise BadGears(f"the tensor has no dimension {dim}", near=f"dimensions 0 to {t.dim() - 1}")
    if not isinstance(sizes, list | tuple):
        raise BadGears(f"the gears of dimension {dim} must be a list or a tuple", got=repr(sizes), next=USAGE)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size <= 0]
    if wrong:
        raise BadGears(f"the gears of dimension {dim} must be positive ints", got=repr(wrong[0]), next=USAGE)
    # A size may occur twice: with the policy 'zip', equal positions of several inputs are one gear.
    if not FEWEST <= len(sizes) <= MOST:
        raise BadGears(
            f"dimension {dim} must have {FEWEST} to {MOST} gears", got=f"{len(sizes)} gears", next=USAGE
        )


@dataclass(frozen=True)
class Gears:
    """The combinations of sizes that a graph is compiled for."""

    rows: tuple[Row, ...]

    def __contains__(self, row: Row) -> bool:
        return row in self.rows

    def of(self, args: Sequence[Any], binding: Binding) -> Row:
        """Return the sizes of a call; a size that its arguments do not determine is 0."""
        values = binding.reader(args).values
        return tuple((symbol, values.get(symbol, 0)) for symbol, _ in self.rows[0])


def room_of(gears: Gears, inputs: Sequence[Any], layouts: Sequence[Layout | None]) -> MaxSizes:
    """Return the bytes of inputs, and of outputs with their own memory, for the largest of these gears."""
    largest = [row for row in gears.rows if not any(_is_below(row, other) for other in gears.rows)]
    readers = [Reader(dict(row)) for row in largest]
    tensors = {
        index: replace(layout_of(value), offset=0)
        for index, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }
    # Outputs that share a storage need the bytes up to the last element of any of them.
    storages: dict[int, int] = {}
    owned = {index: layout for index, layout in enumerate(layouts) if layout and layout.base is None}
    for layout in owned.values():
        extent = max(_extent(layout, read) for read in readers)
        storages[layout.storage] = max(extent, storages.get(layout.storage, 0))
    return MaxSizes(
        {index: max(_extent(layout, read) for read in readers) for index, layout in tensors.items()},
        {index: storages[layout.storage] for index, layout in owned.items()},
    )


def _is_below(row: Row, other: Row) -> bool:
    """Whether the other gear is at least as large in every size, and larger in one."""
    pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(row, other, strict=True)]
    return row != other and all(mine <= theirs for mine, theirs in pairs)


def _extent(layout: Layout, read: Reader) -> int:
    """Return the bytes up to the last element; 0 if the tensor is empty or a size is unknown."""
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
    """Whether any input has gears."""
    return any(getattr(value, NAME, None) for value in inputs)


def gears_of(
    gm: fx.GraphModule, inputs: Sequence[Any], policy: str, degradations: Diagnostics
) -> Gears | None:
    """Return the gears of the inputs of Dynamo's graph, or None if none are set.

    This adds guards that accept exactly these sizes, and only the sizes of this call for other dimensions.
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
                "gears are ignored for a call of size 0 or 1, which torch compiles separately",
                next="also set the gears on the inputs of the first call with a larger size",
                here=True,
            )
            return None
        raise BadGears(
            "no dimension with gears is dynamic",
            got=", ".join(f"{name}: size {size}" for name, size, _ in dims),
            next="call torch.compile with dynamic=True",
        )
    for name, size, sizes in dynamic:
        _guard(name, size, sorted({number for number in sizes if number > 1}))
    geared = {symbol for _, size, _ in dynamic for symbol in size.node.expr.free_symbols}
    for _, _, known in tensors:
        for size in known.shape:
            if is_symbol(size) and not size.node.expr.free_symbols & geared:
                int(size)
    rows = _rows(dynamic, policy)
    return Gears(rows) if geared else None  # if each dimension has one size left, the graph has no symbols


def _tensors(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return the name of each tensor, the tensor, and Dynamo's fake tensor for it."""
    pairs = zip(placeholders(gm), inputs, strict=True)
    return [
        (node.name, given, node.meta.get("example_value", given))
        for node, given in pairs
        if isinstance(given, torch.Tensor)
    ]


def _guard(name: str, size: torch.SymInt, sizes: Sequence[int]) -> None:
    """Guard on pairs of neighboring sizes: torch cannot evaluate one condition on many sizes."""
    now = int(size.node.hint)
    if now not in sizes:
        raise BadGears(
            f"the size of input {name} is not one of its gears",
            got=f"size {now}, gears {list(sizes)}",
            next="add this size to the gears, or call the model with one of these sizes",
        )
    is_admitted = bool(size >= sizes[0]) and bool(size <= sizes[-1])
    for left, right in itertools.pairwise(sizes):
        is_admitted = is_admitted and bool((size <= left) | (size >= right))
    assert is_admitted, "the size of this call is a gear"


def _rows(dims: Sequence[tuple[str, torch.SymInt, Sequence[int]]], policy: str) -> tuple[Row, ...]:
    """Combine the gears of several dimensions by the merge policy."""
    lists = [sizes for _, _, sizes in dims]
    if policy == "zip" and len({len(sizes) for sizes in lists}) > 1:
        lengths = ", ".join(f"{len(sizes)} of {name}" for name, _, sizes in dims)
        raise BadGears(
            "with dynamic_gears_merge_policy='zip', all dimensions must have equally many gears",
            got=lengths,
            next=PRODUCT,
        )
    combined = zip(*lists, strict=True) if policy == "zip" else itertools.product(*lists)
    rows: dict[Row, None] = {}
    for sizes in combined:
        row: dict[Any, int] = {}
        # A symbol that two dimensions share must have one size, and a constant dimension its own.
        fits = [_fits(size.node.expr, number, row) for (_, size, _), number in zip(dims, sizes, strict=True)]
        if all(fits):
            rows[tuple(row.items())] = None
        if len(rows) > MOST:
            raise BadGears(
                f"the gears of all dimensions combine to more than {MOST} gears",
                got=f"dynamic_gears_merge_policy={policy!r}",
                next="set fewer gears, or use the policy 'zip'",
            )
    return tuple(rows)


def _fits(expr: Any, number: int, row: dict[Any, int]) -> bool:
    return row.setdefault(expr, number) == number if expr.free_symbols else expr == number


PRODUCT = "set inference_config.dynamic_gears_merge_policy = 'product' to combine every size with every other"

Make = Callable[[fx.GraphModule, list[Any], FakeTensorMode], Program]
"""Compile a graph of fixed sizes, with fake inputs."""


@dataclass(frozen=True)
class GearPrograms:
    """Create the programs for the gears of one graph."""

    gm: fx.GraphModule
    gears: Gears
    binding: Binding
    contract: OutputLayouts
    degradations: Diagnostics
    make: Make
    lost_in_pieces: str = (
        "a graph with gears is partitioned for recording, so the dynamic program serves all gears"
    )

    def __call__(self, key: Hashable, args: Sequence[Any]) -> PendingProgram | None:
        """Return the program for this key; None if its sizes are not a gear."""
        return (
            GearProgram(self, tensor_metadata_of(args))
            if self.gears.of(args, self.binding) in self.gears
            else None
        )


class GearProgram(PendingProgram):
    """The program of one gear, compiled by the thread that calls `take`."""

    def __init__(self, programs: GearPrograms, specs: Sequence[TensorMetadata | Any]) -> None:
        super().__init__()
        self._programs, self._specs = programs, specs
        self.is_done.set()

    def take(self) -> Program | None:
        """Compile the program for these sizes; warn and return None if that fails."""
        programs = self._programs
        try:
            gm = specialised(programs.gm, self._specs)
            mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
            with faking(mode):
                inputs = [spec.make() if isinstance(spec, TensorMetadata) else spec for spec in self._specs]
            fake_tensor_prop(gm, mode, inputs)
            program = programs.make(gm, inputs, mode)
        except Exception as error:
            what = (
                f"cannot compile a program for a gear, so the dynamic program serves it: {first_line(error)}"
            )
            programs.degradations.add(what, here=True)
            return None
        return LayoutEnforcer(program, programs.contract, (), programs.degradations)
