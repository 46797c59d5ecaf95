"""Layouts of the values that leave a graph: outputs, tensors saved for backward, aliases of inputs.

Inside the IR, tensors are logical. A value that leaves the graph has exactly the layout that eager gives.
This requirement is a `Layout`, read once from the FX graph (`layouts_of`):

* an *alias* is a view of an input: the index of the input and the calls that view it. Only the call
  determines the storage and offset of the input. So a view is created from the input of each call, never from
  numbers of the traced call.
* every other value is *owned*: sizes, strides, and the number of its storage. Owned values with the same
  number share memory, at the distance of their offsets; values with different numbers share nothing.

`materialize_layout` gives values these layouts, in a traced graph and for real tensors. `layout_check.py`
compares the results of a program with them.
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
"""Maps a number of the graph to its value in a call, or to the node that computes it."""


@dataclass(frozen=True)
class ViewStep:
    """One call that views a tensor, without that tensor. `item` selects one of several results."""

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
    """Required layout of one value. Numbers may be symbols; `offset` counts elements from the start of the
    storage.
    """

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    storage: int
    base: int | None = None  # the input it is a view of
    steps: tuple[ViewStep, ...] = ()  # how to view the input
    is_left_out: bool = False  # the program returns None in its place
    is_lazy: bool = False  # it has the conjugate or negative bit
    marks: tuple[Any, ...] = ()  # calls that set these bits on the result of the program
    is_example: bool = False  # numbers are examples: only the order of the strides counts
    first: int | None = None  # the first output that is the same tensor, if known

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All numbers that may be symbols."""
        if self.base is None:
            return (*self.sizes, *self.strides, self.offset)
        return tuple(_leaves([(step.args, tuple(step.kwargs.values())) for step in self.steps]))

    def view(self, base: torch.Tensor, read: Read) -> torch.Tensor:
        """Return the alias of `base`, the input of a call."""
        for step in self.steps:
            base = step.apply(base, read)
        return base


def layouts_of(gm: fx.GraphModule) -> tuple[Layout | None, ...]:
    """Return the required layout of each output of a functional graph; None for values that are not strided
    tensors.
    """
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
    """Make the graph return None for outputs that are views of mutated inputs, and return the new layouts.
    The functional graph views the new value of the input; the caller expects a view of the input itself.
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
    """Yield each input that a functional graph writes at its end, with the written value."""
    index = {node: place for place, node in enumerate(placeholders(gm))}
    for copy in _calls(gm, torch.ops.aten.copy_.default):
        target: Any = copy.args[0]
        if target in index:
            yield index[target], copy.args[1]


def layout_of(value: torch.Tensor, storage: int = 0) -> Layout:
    """Return the layout of a tensor that aliases no input."""
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
    # A lazily conjugated value need not share memory with other values.
    memory = id(node) if value.is_conj() or value.is_neg() else storage_id(value)
    promised = layout_of(value, storages.setdefault(memory, len(storages)))
    root, steps = root_of(node)
    if root in index:
        return replace(promised, base=index[root], steps=steps)
    return replace(promised, is_example=_cannot_be(root))


def _cannot_be(root: fx.Node) -> bool:
    """Return whether elements of new memory would overlap. Fake tensors are wrong there (FFTs over several
    dims, with MKL); only ops that request such strides get them. With stride 0 an op may repeat elements.
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
    """Return the node that created the memory a node uses (an input, or the result of an op), or an earlier
    one of `ends`, and the views between them.
    """
    steps: list[ViewStep] = []
    while node not in ends and (viewed := viewed_by(node)) is not None:
        node, step = viewed
        if step is not None:
            steps.append(step)
    return node, tuple(reversed(steps))


def viewed_by(node: fx.Node) -> tuple[fx.Node, ViewStep | None] | None:
    """Return the node whose memory this one uses, and the view between them (None if the result is the same
    tensor). Return None for a node that creates its own memory.
    """
    if node.op != "call_function":
        return None
    call: fx.Node = node
    item: int | None = None
    if node.target is operator.getitem:
        call, item = cast(Any, node.args)
    target: Any = call.target
    # Some fake results share memory although the op copies (`native_dropout` outside training).
    if not isinstance(target, OpOverload) or not returns_views(target):
        return None
    memory = memory_of(node.meta.get("val"))
    if memory is None:
        return None
    for place, argument in enumerate(call.args):
        if isinstance(argument, fx.Node) and memory_of(argument.meta.get("val")) == memory:
            if mutates(target):
                # An op that writes a tensor returns that tensor. In-place view ops do not, here.
                return None if torch.Tag.inplace_view in target.tags else (argument, None)
            rest = (*call.args[:place], *call.args[place + 1 :])
            given: Any = map_arg((rest, dict(call.kwargs)), lambda n: n.meta.get("val", n))
            return argument, ViewStep(target, tuple(given[0]), dict(given[1]), place, item)
    return None


ABSOLUTE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
"""Calls that count from the start of a storage, ignoring the offset of their tensor."""


COPIES_STORAGE = frozenset(
    {
        torch.ops.aten.as_strided_scatter.default,
        torch.ops.aten.copy.default,
        torch.ops.aten.diagonal_scatter.default,
        torch.ops.aten.select_scatter.default,
        torch.ops.aten.slice_scatter.default,
    }
)
"""Calls that copy the whole storage of their first argument, and return a tensor at the same offset."""


def storage_relative_inputs(gm: fx.GraphModule) -> dict[int, fx.Node]:
    """Return the inputs whose storage offset affects what the graph reads, each with a node that depends on
    it.
    """
    found: dict[int, fx.Node] = {}
    inputs = {node: place for place, node in enumerate(placeholders(gm))}
    for node, root, _ in _windows(gm):
        if root in inputs:
            found.setdefault(inputs[root], node)
    return found


def windows_of_copies(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the `as_strided` calls on copies of the storages of inputs. Compilers copy only elements."""
    return [node for node, root, is_copied in _windows(gm) if is_copied and root.op == "placeholder"]


def has_raw_as_strided(gm: fx.GraphModule) -> bool:
    """Return whether `as_strided` reads memory that its tensor sees through a view (for example with another
    dtype). The IR, whose tensors are logical, does not have that memory.
    """
    sources = [node.args[0] for target in ABSOLUTE for node in _calls(gm, target)]
    is_viewed = any(viewed_by(cast(fx.Node, source)) is not None for source in sources)
    return is_viewed or bool(windows_of_copies(gm))


def _windows(gm: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """Yield each call that counts from the start of a storage, the node that owns or owned that storage, and
    whether the storage was copied in between.
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
    """Return an identity for the memory of a tensor; a sparse tensor has several parts."""
    if not isinstance(value, torch.Tensor):
        return None
    return storage_id(value) if value.layout is torch.strided else id(value)


# Give values a layout


def materialize_layout(
    values: Sequence[torch.Tensor], layouts: Sequence[Layout], read: Read = lambda number: number
) -> list[torch.Tensor]:
    """Return `values`, which share memory only with each other, in their owned layouts of one storage. Values
    with the right layout are not copied.
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
        # A clone has offset 0; the offset of the value in its memory is unknown here.
        whole = whole.clone() if whole is values[cover] else whole
    return [_strided(whole, layout, read, read(layout.offset) - read(first.offset)) for layout in layouts]


def _arranged(value: torch.Tensor, layout: Layout, read: Read) -> torch.Tensor:
    """Return one value with its layout in its own memory."""
    if value.layout is not torch.strided or value.ndim != len(layout.sizes) or lies(value, layout, read):
        return value
    if lies(value, layout, read, loosely=True):
        # The runner corrects strides that do not affect elements: it sees the real tensor.
        return value
    order = _order(layout, value.shape, read) if layout.is_example else dense_order(layout)
    if order is None:
        whole = _written(value.new_empty(_length(layout, read)), value, layout, read, 0)
        return _strided(whole, layout, read, 0)
    back = tuple(order.index(dim) for dim in range(len(order)))
    value = value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    return value if lies(value, layout, read) else _strided(value, layout, read, 0)


def _parts(whole: torch.Tensor, at: Layout, layouts: Sequence[Layout]) -> list[torch.Tensor]:
    """Return other dense tensors as views of a dense tensor with the layout `at`."""
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
    """Return `whole` with `value` written into it. Elements that overlap (stride 0) are written once."""
    sizes, strides = [read(n) for n in layout.sizes], [read(n) for n in layout.strides]
    for dim in range(value.ndim):
        if equal(layout.strides[dim], 0) and not equal(layout.sizes[dim], 0):
            value, sizes[dim] = value.narrow(dim, 0, 1), 1
    return torch.as_strided_scatter(whole, value, sizes, strides, offset)


def lies(value: torch.Tensor, layout: Layout, read: Read, *, loosely: bool = False) -> bool:
    """Return whether the value has these strides; with `loosely`, whether they agree where they affect
    elements.
    """
    if layout.is_example:
        return stride_order(value.shape, value.stride()) == _order(layout, value.shape, read)
    if loosely and any(equal(read(size), 0) for size in layout.sizes):
        return True
    return all(
        equal(have, read(want)) or (loosely and equal(read(size), 1))
        for have, want, size in zip(value.stride(), layout.strides, layout.sizes, strict=True)
    )


def _order(layout: Layout, sizes: Sequence[Any], read: Read) -> tuple[int, ...]:
    """Return the dims of a value with these sizes from slowest to fastest, in the order of the layout."""
    strides: list[Any] = []
    for stride in layout.strides:
        try:
            strides.append(read(stride))
        except Unreadable:
            strides.append(stride)
    return stride_order(sizes, strides)


def dense_order(layout: Layout) -> tuple[int, ...] | None:
    """Return the dims from slowest to fastest if the elements fill contiguous memory, else None."""
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
    """Return the dims from slowest to fastest. Dims of size 1 and ties keep their position."""
    steps = [hint(step) for step in strides]
    # A unit dim may have any stride: it follows its left neighbor, so it never forces a copy.
    for dim in range(len(steps)):
        if hint(sizes[dim]) == 1:
            steps[dim] = steps[dim - 1] if dim else max(steps, default=1)
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def _length(layout: Layout, read: Read) -> Any:
    """Return the number of elements from the first to the last."""
    if any(equal(size, 0) for size in layout.sizes):
        return 0
    pairs = zip(layout.sizes, layout.strides, strict=True)
    total = sum((read(size) - 1) * read(step) for size, step in pairs) + 1
    # A size may still be 0.
    return torch.sym_max(total, 0) if is_symbol(total) else max(total, 0)


def _extent(layouts: Sequence[Layout], first: Layout, read: Read) -> Any:
    """Return the number of elements from the first of all layouts to the last of all, in any call."""
    ends = [read(layout.offset) - read(first.offset) + _length(layout, read) for layout in layouts]
    return functools.reduce(torch.sym_max if any(map(is_symbol, ends)) else max, ends)


def _is_one(values: Sequence[torch.Tensor], layouts: Sequence[Layout]) -> bool:
    """Return whether one value leaves the graph several times, for example as a result and for backward."""
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
    """Return whether these can be parts of one tensor."""
    is_plain = not any(layout.is_lazy or layout.is_example for layout in layouts)
    return is_plain and len({layout.dtype for layout in layouts}) == 1


def _cover(layouts: Sequence[Layout]) -> int | None:
    """Return the index of the dense layout that contains all others of one storage in any call, or None."""
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
