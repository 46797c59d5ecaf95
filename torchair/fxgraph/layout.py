"""Layouts of what leaves a graph: outputs, tensors saved for backward, aliases of inputs.

Inside the IR tensors are logical. At an edge that leaves the graph a tensor is exactly what eager gives. The
promise is a value, a `Layout`, read once from the FX graph (`layouts_of`):

* an *alias* is a view of an input: the input's index and the calls that view it. Where the input lies in a
  call (its offset, its storage) is nobody's business but the call's, so a view is made from the input of each
  call, never from numbers of the call that was traced.
* everything else is *owned*: sizes, strides, and the number of its storage. Owned edges with one number look
  at one piece of memory, at the distance of their offsets; edges with different numbers share nothing.

`materialize_layout` gives values these layouts, in a traced graph and on real tensors alike.
`layout_check.py` checks the results of a program against them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.sym_expr import SymExpr
from torchair.core.torch_private.device.memory import storage_id
from torchair.core.torch_private.fake.fake_tensors import statically_known_true
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import mutates, returns_views
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Unreadable, equal, hint, is_symbol

Read = Callable[[Any], Any]
"""From a number of the graph to its value in a call, or to the node that computes it."""


@dataclass(frozen=True)
class ViewStep:
    """One call that views a tensor: all of it but the tensor; `item` picks one of several results."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int  # of the tensor among the arguments
    item: int | None = None

    def apply(self, x: torch.Tensor, read: Read) -> torch.Tensor:
        args, kwargs = _numbers((self.args, self.kwargs), read)
        made = self.target(*args[: self.place], x, *args[self.place :], **kwargs)
        return made if self.item is None else made[self.item]


@dataclass(frozen=True)
class Layout:
    """How one edge lies in memory. Numbers may be symbols; `offset` counts elements in its storage."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    storage: int
    base: int | None = None  # the input it is a view of
    steps: tuple[ViewStep, ...] = ()  # how to view the input
    is_left_out: bool = False  # the program returns None in its place
    is_lazy: bool = False  # its elements are conjugated or negated when they are read
    marks: tuple[Any, ...] = ()  # calls that are made on the result of the program
    is_example: bool = False  # numbers are examples: only the order of the strides counts
    first: int | None = None  # the first output that is this very tensor, where that is known

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All that may be symbolic."""
        if self.base is None:
            return (*self.sizes, *self.strides, self.offset)
        return tuple(_leaves([(step.args, tuple(step.kwargs.values())) for step in self.steps]))

    def view(self, base: torch.Tensor, read: Read) -> torch.Tensor:
        """The alias that this is of `base`, the input of a call."""
        for step in self.steps:
            base = step.apply(base, read)
        return base


def layouts_of(gm: fx.GraphModule) -> tuple[Layout | None, ...]:
    """The promise of each output of a functional graph; None for what is no strided tensor."""
    inputs = placeholders(gm)
    index = {node: place for place, node in enumerate(inputs)}
    storages: dict[int, int] = {}
    returned: Any = gm.graph.output_node().args[0]
    listed = returned if isinstance(returned, list | tuple) else [returned]
    firsts: dict[Any, int] = {}
    layouts = [_layout(node, index, storages) for node in listed]
    return tuple(
        None if layout is None else replace(layout, first=firsts.setdefault(node, place))
        for place, (node, layout) in enumerate(zip(listed, layouts, strict=True))
    )


def drop_input_views(
    gm: fx.GraphModule, layouts: Sequence[Layout | None], inputs: Mapping[int, int]
) -> tuple[Layout | None, ...]:
    """Outputs that are views of inputs to the caller, though the graph, which is functional, looks at the new
    value of the input: they are made of the input, and the graph returns None in their place.
    """
    made = list(layouts)
    news = {new: place for place, new in new_values(gm)}
    output = gm.graph.output_node()
    returned: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for place, base in inputs.items():
        layout = made[place] if place < len(made) else None
        if layout is None or layout.base is not None:
            continue
        root, steps = root_of(returned[place], news)
        if news.get(root) == base:
            made[place] = replace(layout, base=base, steps=steps, is_left_out=True)
            returned[place] = None
    output.args = (tuple(returned),)
    return tuple(made)


def new_values(gm: fx.GraphModule) -> Iterator[tuple[int, Any]]:
    """The inputs that a functional graph writes at its end, and what it writes there."""
    index = {node: place for place, node in enumerate(placeholders(gm))}
    for copy in _calls(gm, torch.ops.aten.copy_.default):
        target: Any = copy.args[0]
        if target in index:
            yield index[target], copy.args[1]


def layout_of(value: torch.Tensor, storage: int = 0) -> Layout:
    """The layout of a tensor that aliases no input."""
    return Layout(
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset(),
        value.dtype,
        value.device,
        storage,
        is_lazy=value.is_conj() or value.is_neg(),
    )


def _layout(node: Any, index: dict[fx.Node, int], storages: dict[int, int]) -> Layout | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    # What is conjugated when it is read need not share memory with what is not.
    memory = id(node) if value.is_conj() or value.is_neg() else storage_id(value)
    promised = layout_of(value, storages.setdefault(memory, len(storages)))
    root, steps = root_of(node)
    if root in index:
        return replace(promised, base=index[root], steps=steps)
    return replace(promised, is_example=_cannot_be(root))


def _cannot_be(root: fx.Node) -> bool:
    """Are elements of new memory said to lie on each other? Fake tensors err there (FFTs over several dims,
    with MKL); only who asks for such strides gets them. Without a stride at all (0) an op may repeat itself.
    """
    value = root.meta.get("val")
    if root.op != "call_function" or root.target in STRIDES_AS_ASKED or not isinstance(value, torch.Tensor):
        return False
    dims = zip(map(hint, value.stride()), map(hint, value.shape), strict=True)
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in dims if size > 1 and stride > 0):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


STRIDES_AS_ASKED = (torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default)


def root_of(node: fx.Node, ends: Collection[Any] = ()) -> tuple[fx.Node, tuple[ViewStep, ...]]:
    """The node that made the memory a node looks at (an input, or an op's result), or one of `ends` before
    it, and the views in between.
    """
    steps: list[ViewStep] = []
    while node not in ends and (viewed := viewed_by(node)) is not None:
        node, step = viewed
        if step is not None:
            steps.append(step)
    return node, tuple(reversed(steps))


def viewed_by(node: fx.Node) -> tuple[fx.Node, ViewStep | None] | None:
    """The node whose memory this one looks at, and the call between them: None where the result is that
    tensor itself. None for a node that makes memory of its own.
    """
    if node.op != "call_function":
        return None
    call: fx.Node = node
    item: int | None = None
    if node.target is operator.getitem:
        call, item = cast(Any, node.args)
    target: Any = call.target
    # Some fake results share memory where the op copies (`native_dropout` outside training).
    if not isinstance(target, OpOverload) or not returns_views(target):
        return None
    memory = memory_of(node.meta.get("val"))
    if memory is None:
        return None
    for place, argument in enumerate(call.args):
        if isinstance(argument, fx.Node) and memory_of(argument.meta.get("val")) == memory:
            if mutates(target):
                # What writes into a tensor returns that tensor; what turns it around in place does not here.
                return None if torch.Tag.inplace_view in target.tags else (argument, None)
            rest = (*call.args[:place], *call.args[place + 1 :])
            given: Any = map_arg((rest, dict(call.kwargs)), lambda n: n.meta.get("val", n))
            return argument, ViewStep(target, tuple(given[0]), dict(given[1]), place, item)
    return None


ABSOLUTE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
"""Calls that count from the start of a storage, whatever part of it their tensor is."""


COPIES_STORAGE = frozenset(
    {
        torch.ops.aten.as_strided_scatter.default,
        torch.ops.aten.copy.default,
        torch.ops.aten.diagonal_scatter.default,
        torch.ops.aten.select_scatter.default,
        torch.ops.aten.slice_scatter.default,
    }
)
"""Calls that copy the whole storage of their first argument, and return a tensor at the same place in it."""


def storage_relative_inputs(gm: fx.GraphModule) -> dict[int, fx.Node]:
    """The inputs whose place in their storage decides what the graph reads, and a node that asks for it."""
    found: dict[int, fx.Node] = {}
    inputs = {node: place for place, node in enumerate(placeholders(gm))}
    for node, root, _ in _windows(gm):
        if root in inputs:
            found.setdefault(inputs[root], node)
    return found


def windows_of_copies(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the windows of copies of the storages of inputs. Compilers copy elements only."""
    return [node for node, root, is_copied in _windows(gm) if is_copied and root.op == "placeholder"]


def has_raw_as_strided(gm: fx.GraphModule) -> bool:
    """Is a window taken from memory that its tensor looks at through a view (with another dtype, say)? To the
    IR, whose tensors are logical, that memory is lost.
    """
    sources = [node.args[0] for target in ABSOLUTE for node in _calls(gm, target)]
    is_viewed = any(viewed_by(cast(fx.Node, source)) is not None for source in sources)
    return is_viewed or bool(windows_of_copies(gm))


def _windows(gm: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """Yield each call that counts from the start of a storage, the node whose storage that is or was, and
    whether it was copied on the way.
    """
    for target in ABSOLUTE:
        for node in _calls(gm, target):
            root, _ = root_of(cast(fx.Node, node.args[0]))
            is_copied = root.target in COPIES_STORAGE
            while root.target in COPIES_STORAGE:
                root, _ = root_of(cast(fx.Node, root.args[0]))
            yield node, root, is_copied


def _calls(gm: fx.GraphModule, target: Any) -> Iterable[fx.Node]:
    return gm.graph.find_nodes(op="call_function", target=target)


def memory_of(value: Any) -> int | None:
    """Identity of the memory a tensor looks at; a sparse one has parts of its own."""
    if not isinstance(value, torch.Tensor):
        return None
    return storage_id(value) if value.layout is torch.strided else id(value)


# Giving values a layout


def materialize_layout(
    values: Sequence[torch.Tensor], layouts: Sequence[Layout], read: Read = lambda number: number
) -> list[torch.Tensor]:
    """`values`, which share memory with nobody else, with their owned layouts of one storage. Values that lie
    as promised stay where they are.
    """
    if len(values) > 1 and _is_one(values, layouts):
        return [_arranged(values[0], layouts[0], read)] * len(values)
    if len(values) == 1 or not _alike(layouts):
        return [_arranged(value, layout, read) for value, layout in zip(values, layouts, strict=True)]
    cover = _cover(layouts)
    if cover is None:
        first = min(layouts, key=lambda layout: hint(layout.offset))
        whole = values[0].new_empty(_extent(layouts, first, read))
        for value, layout in zip(values, layouts, strict=True):
            whole = _written(whole, value, layout, read, read(layout.offset) - read(first.offset))
    else:
        first = layouts[cover]
        whole = _arranged(values[cover], first, read)
        if not any(map(is_symbol, [n for layout in layouts for n in layout.numbers])) and all(
            dense_order(layout) is not None for layout in layouts
        ):
            return _parts(whole, first, layouts)
        # A copy begins at the start of its memory; where a value begins in its own is not known here.
        whole = whole.clone() if whole is values[cover] else whole
    return [_strided(whole, layout, read, read(layout.offset) - read(first.offset)) for layout in layouts]


def _arranged(value: torch.Tensor, layout: Layout, read: Read) -> torch.Tensor:
    """One value in memory of its own."""
    if value.layout is not torch.strided or value.ndim != len(layout.sizes) or lies(value, layout, read):
        return value
    if lies(value, layout, read, loosely=True):
        # Strides that nobody can tell by the elements are the runner's: it sees the real tensor.
        return value
    order = _order(layout, value.shape, read) if layout.is_example else dense_order(layout)
    if order is None:
        whole = _written(value.new_empty(_length(layout, read)), value, layout, read, 0)
        return _strided(whole, layout, read, 0)
    back = tuple(order.index(dim) for dim in range(len(order)))
    value = value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    return value if lies(value, layout, read) else _strided(value, layout, read, 0)


def _parts(whole: torch.Tensor, at: Layout, layouts: Sequence[Layout]) -> list[torch.Tensor]:
    """The elements of a dense tensor, which lies like `at`, that make other dense ones: by views alone."""
    flat: torch.Tensor | None = None
    made: list[torch.Tensor] = []
    for layout in layouts:
        if (layout.sizes, layout.strides, layout.offset) == (at.sizes, at.strides, at.offset):
            made.append(whole)
            continue
        flat = _permuted(whole, cast(Any, dense_order(at))).reshape(-1) if flat is None else flat
        order = cast(Any, dense_order(layout))
        sizes = [layout.sizes[dim] for dim in order]
        count, start = math.prod(sizes), layout.offset - at.offset
        part = flat if count == flat.numel() else flat.narrow(0, start, count)
        part = part if len(sizes) == 1 else part.view(sizes)
        made.append(_permuted(part, [order.index(dim) for dim in range(len(order))]))
    return made


def _permuted(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    return value if list(order) == list(range(value.ndim)) else value.permute(tuple(order))


def _strided(whole: torch.Tensor, layout: Layout, read: Read, offset: Any) -> torch.Tensor:
    return whole.as_strided([read(n) for n in layout.sizes], [read(n) for n in layout.strides], offset)


def _written(
    whole: torch.Tensor, value: torch.Tensor, layout: Layout, read: Read, offset: Any
) -> torch.Tensor:
    """`whole` with `value` at its place. Of elements that share a place (stride 0) one is written."""
    sizes, strides = [read(n) for n in layout.sizes], [read(n) for n in layout.strides]
    for dim in range(value.ndim):
        if equal(layout.strides[dim], 0) and not equal(layout.sizes[dim], 0):
            value, sizes[dim] = value.narrow(dim, 0, 1), 1
    return torch.as_strided_scatter(whole, value, sizes, strides, offset)


def lies(value: torch.Tensor, layout: Layout, read: Read, *, loosely: bool = False) -> bool:
    """Has the value these strides? `loosely`: where they matter, that is between elements."""
    if layout.is_example:
        return stride_order(value.shape, value.stride()) == _order(layout, value.shape, read)
    if loosely and any(equal(read(size), 0) for size in layout.sizes):
        return True
    return all(
        equal(have, read(want)) or (loosely and equal(read(size), 1))
        for have, want, size in zip(value.stride(), layout.strides, layout.sizes, strict=True)
    )


def _order(layout: Layout, sizes: Sequence[Any], read: Read) -> tuple[int, ...]:
    """The dims of a value of these sizes from the slowest to the fastest, as the layout has them."""
    strides: list[Any] = []
    for stride in layout.strides:
        try:
            strides.append(read(stride))
        except Unreadable:
            strides.append(stride)
    return stride_order(sizes, strides)


def dense_order(layout: Layout) -> tuple[int, ...] | None:
    """The dims from the slowest to the fastest, where the elements fill one piece of memory; else None."""
    order = stride_order(layout.sizes, layout.strides)
    expected = 1
    for dim in reversed(order):
        size = hint(layout.sizes[dim])
        if size == 0:
            return order
        if size != 1 and hint(layout.strides[dim]) != expected:
            return None
        expected *= size
    return order


def stride_order(sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[int, ...]:
    """The dims from the slowest to the fastest. Dims of size 1 and ties keep their place."""
    steps = [hint(step) for step in strides]
    # A unit dim may have any stride: it follows its left neighbour, so it never forces a copy.
    for dim in range(len(steps)):
        if hint(sizes[dim]) == 1:
            steps[dim] = steps[dim - 1] if dim else max(steps, default=1)
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def _length(layout: Layout, read: Read) -> Any:
    """Elements from the first to the last."""
    if any(equal(size, 0) for size in layout.sizes):
        return 0
    pairs = zip(layout.sizes, layout.strides, strict=True)
    total = sum((read(size) - 1) * read(step) for size, step in pairs) + 1
    # A size may still turn out to be 0.
    return torch.sym_max(total, 0) if is_symbol(total) else max(total, 0)


def _extent(layouts: Sequence[Layout], first: Layout, read: Read) -> Any:
    """Elements from the first of all to the last of all, in any call."""
    ends = [read(layout.offset) - read(first.offset) + _length(layout, read) for layout in layouts]
    return functools.reduce(torch.sym_max if any(map(is_symbol, ends)) else max, ends)


def _is_one(values: Sequence[torch.Tensor], layouts: Sequence[Layout]) -> bool:
    """Is it one value that leaves the graph more than once: as a result and for backward, say?"""
    first = layouts[0]
    return all(value is values[0] for value in values) and all(
        layout.dtype == first.dtype
        and len(layout.sizes) == len(first.sizes)
        and all(map(equal, layout.sizes, first.sizes))
        and all(map(equal, layout.strides, first.strides))
        and equal(layout.offset, first.offset)
        for layout in layouts
    )


def _alike(layouts: Sequence[Layout]) -> bool:
    """Can they be parts of one tensor?"""
    is_plain = not any(layout.is_lazy or layout.is_example for layout in layouts)
    return is_plain and len({layout.dtype for layout in layouts}) == 1


def _cover(layouts: Sequence[Layout]) -> int | None:
    """The dense one among layouts of one storage that reaches over all others, in any call."""
    spans = [(layout.offset, layout.offset + _length(layout, lambda number: number)) for layout in layouts]
    for place, ((start, end), layout) in enumerate(zip(spans, layouts, strict=True)):
        if dense_order(layout) is not None and all(
            statically_known_true(start <= low) and statically_known_true(high <= end) for low, high in spans
        ):
            return place
    return None


# Numbers in the arguments of views


def _numbers(nested: Any, read: Read) -> Any:
    if isinstance(nested, list | tuple) and not isinstance(nested, torch.Size):
        return type(nested)(_numbers(item, read) for item in nested)
    if isinstance(nested, dict):
        return {key: _numbers(item, read) for key, item in nested.items()}
    return read(nested) if is_symbol(nested) or isinstance(nested, SymExpr) else nested


def _leaves(nested: Any) -> list[Any]:
    if isinstance(nested, list | tuple):
        return [leaf for item in nested for leaf in _leaves(item)]
    return [nested]
