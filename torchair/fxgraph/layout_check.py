"""Check the results of a program against the layouts that its graph requires.

An `OutputLayouts` has all layouts of a graph. `looks` returns the outputs that only need another view,
`faults` the outputs whose layout is wrong, and `mend` corrects them. Strides of dims of size 1 and of tensors
without elements are part of the layout, but never need a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torchair.core.log import logger
from torchair.core.torch_private.device.memory import storage_id
from torchair.core.torch_private.fake.fake_tensors import is_unbacked
from torchair.fxgraph.layout import Layout, Read, layout_of, lies
from torchair.fxgraph.symbols import Binding, Reader, Unreadable


@dataclass(frozen=True)
class ViewFixup:
    """Corrects an output with these sizes by a view: its elements are right and at the right addresses."""

    place: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_owned: bool  # it is not a view for autograd, and may be written in place

    def through(self, output: torch.Tensor) -> torch.Tensor:
        if output.shape != self.sizes:
            return output
        seen = output if output.stride() == self.strides else output.as_strided(self.sizes, self.strides)
        return seen.detach() if self.is_owned else seen


def looked_at(outputs: Sequence[Any], looks: Sequence[ViewFixup]) -> list[Any]:
    """Return the outputs, with some replaced by views."""
    made = list(outputs)
    for look in looks:
        made[look.place] = look.through(made[look.place])
    return made


@dataclass(frozen=True)
class Sameness:
    """Outputs that must become one tensor object, and outputs that must become separate objects."""

    joined: tuple[tuple[int, int], ...] = ()  # an output, and the output it is identical to
    apart: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.apart)

    def of(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs with as many tensor objects as the graph returns."""
        made = list(outputs)
        for place in self.apart:
            made[place] = made[place].detach()
        for place, first in self.joined:
            made[place] = made[first]
        return made


@dataclass(frozen=True)
class Before:
    """Facts about the arguments of a call that are needed after it. The program may release the arguments."""

    read: Reader
    bases: dict[int, torch.Tensor]
    memories: dict[int, torch.Tensor]  # of arguments that are kept for the call


@dataclass(frozen=True)
class OutputLayouts:
    """The layouts of the outputs of one graph, and where the values of its symbols are read."""

    layouts: tuple[Layout | None, ...]
    binding: Binding = Binding(())  # noqa: RUF009 - it does not change
    written: tuple[int, ...] = ()  # inputs that the graph writes
    lets_go: bool = False  # arguments are released during the run, as in a backward graph
    is_eager: bool = (
        False  # the graph's ops run eagerly: their strides are right even if those of fake tensors are wrong
    )

    @cached_property
    def _bases(self) -> tuple[int, ...]:
        return tuple(
            {layout.base for layout in self.layouts if layout is not None and layout.base is not None}
        )

    @cached_property
    def is_static(self) -> bool:
        """Whether the results have the same layout in every call of a key. False if data determines sizes."""
        layouts = [layout for layout in self.layouts if layout is not None]
        return not any(layout.is_example or any(map(is_unbacked, layout.numbers)) for layout in layouts)

    @cached_property
    def left_out(self) -> tuple[int, ...]:
        """Indices of outputs that no program computes."""
        layouts = enumerate(self.layouts)
        return tuple(place for place, layout in layouts if layout is not None and layout.is_left_out)

    @cached_property
    def marked(self) -> tuple[tuple[int, Any], ...]:
        """Calls that set conj/neg bits on results, after all other corrections."""
        layouts = enumerate(self.layouts)
        return tuple((place, mark) for place, layout in layouts if layout for mark in layout.marks)

    @cached_property
    def _firsts(self) -> dict[int, int]:
        """Maps each output in its own memory to the first output that is the same tensor."""
        found: dict[int, int] = {}
        for place, layout in enumerate(self.layouts):
            if layout is not None and layout.base is None and layout.first is not None:
                first = self.layouts[layout.first]
                # Setting a bit on a result creates another tensor.
                is_one = first is not None and first.marks == layout.marks
                found[place] = layout.first if is_one else place
        return found

    def sameness(self, outputs: Sequence[Any]) -> Sameness:
        """Return how to restore the number of tensor objects that the graph returns. Passes merge equal
        values, and replays create a new object for each output.
        """
        joined: list[tuple[int, int]] = []
        apart: list[int] = []
        seen: set[int] = set()
        for place, first in self._firsts.items():
            output = outputs[place]
            if not isinstance(output, torch.Tensor):
                continue
            if first != place:
                joined += [(place, first)] if output is not outputs[first] or first in apart else []
            elif id(output) in seen:
                apart.append(place)
            seen.add(id(output))
        return Sameness(tuple(joined), tuple(apart))

    def filled(self, before: Before, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs, with those added that no program computes."""
        made = list(outputs)
        for place in self.left_out:
            layout = self.layouts[place]
            assert layout is not None and layout.base is not None, "a dropped output is a view of an input"
            made[place] = layout.view(before.bases[layout.base], before.read)
        return made

    def before(self, args: Sequence[Any], *, looks: bool) -> Before:
        """Collect facts about the arguments before the program runs. With `looks`, also their memory, because
        the results will be checked.
        """
        keeps = looks and not self.lets_go
        tensors = [arg for arg in args if keeps and isinstance(arg, torch.Tensor)]
        memories = {storage_id(tensor): tensor for tensor in tensors if tensor.layout is torch.strided}
        return Before(self.binding.reader(args), {index: args[index] for index in self._bases}, memories)

    def faults(self, before: Before, outputs: Sequence[Any]) -> dict[int, str]:
        """Return the outputs with a wrong layout: their indices, and what is wrong."""
        found: dict[int, str] = {}
        owners: dict[int, int] = {}
        starts: dict[int, int] = {}
        for place, (layout, output) in enumerate(zip(self.layouts, outputs, strict=True)):
            if layout is None or not isinstance(output, torch.Tensor) or output.layout is not torch.strided:
                continue
            if output.ndim != len(layout.sizes):
                continue
            try:
                if layout.base is not None:
                    why = _alias_fault(layout, output, before)
                else:
                    read = before.read.knowing(layout.sizes, output.shape)
                    why = "" if self.is_eager else _stride_fault(layout, output, read)
                    why = why or _memory_fault(layout, output, read, before, owners, starts)
            except Unreadable:
                continue
            if why:
                found[place] = why
        return found

    def looks(self, before: Before, outputs: Sequence[Any]) -> tuple[ViewFixup, ...]:
        """Return the outputs that differ only in ways that a view corrects without a copy: strides of unit
        dims, strides without elements, or views of internal tensors of the program.
        """
        found: list[ViewFixup] = []
        for place, (layout, output) in enumerate(zip(self.layouts, outputs, strict=True)):
            if layout is None or not isinstance(output, torch.Tensor):
                continue
            if output.layout is not torch.strided or output.ndim != len(layout.sizes):
                continue
            is_owned = layout.base is None
            read = before.read.knowing(layout.sizes, output.shape)
            strides = tuple(output.stride())
            try:
                if layout.base is not None:
                    layout = layout_of(layout.view(before.bases[layout.base], read))
                differs = not (self.is_eager and is_owned) and not lies(output, layout, read)
                if differs and lies(output, layout, read, loosely=True):
                    strides = tuple(map(read, layout.strides))
            except Unreadable:
                continue
            if strides != output.stride() or (is_owned and output._is_view()):
                found.append(ViewFixup(place, tuple(output.shape), strides, is_owned))
        return tuple(found)

    def mend(self, before: Before, outputs: Sequence[Any], wrong: Sequence[int]) -> list[Any]:
        """Return the outputs with the required layouts: an alias becomes a view of its input, others are
        copied. Outputs of one storage are corrected together.
        """
        mended = list(outputs)
        groups: dict[int, list[int]] = {}
        for place in wrong:
            layout = self.layouts[place]
            assert layout is not None, "only outputs with a layout have faults"
            if layout.base is not None:
                mended[place] = layout.view(before.bases[layout.base], before.read)
            else:
                groups[layout.storage] = [
                    other
                    for other, known in enumerate(self.layouts)
                    if known is not None and known.base is None and known.storage == layout.storage
                ]
        for group in groups.values():
            layouts = [layout for place in group if (layout := self.layouts[place]) is not None]
            try:
                values = _placed([mended[place] for place in group], layouts, before.read)
            except Unreadable:
                # Their offsets depend on data: each gets at least its own memory.
                values = [mended[place].clone() for place in group]
            for place, value in zip(group, values, strict=True):
                mended[place] = value
        return mended


def _alias_fault(layout: Layout, output: torch.Tensor, before: Before) -> str:
    assert layout.base is not None, "an alias has a base"
    expected = layout.view(before.bases[layout.base], before.read)
    is_same = output is expected or (
        storage_id(output) == storage_id(expected)
        and output.data_ptr() == expected.data_ptr()
        and _look(output) == _look(expected)
    )
    return "" if is_same else f"is not the required view of input {layout.base}"


def _look(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()


def _stride_fault(layout: Layout, output: torch.Tensor, read: Read) -> str:
    if lies(output, layout, read):
        return ""
    logger.info(
        "an output has the strides %s, required are %s",
        tuple(output.stride()),
        tuple(map(read, layout.strides)),
    )
    return "has wrong strides"


def _memory_fault(
    layout: Layout,
    output: torch.Tensor,
    read: Read,
    before: Before,
    owners: dict[int, int],
    starts: dict[int, int],
) -> str:
    """Return what is wrong with the memory that an output shares, or an empty text.

    Args:
        layout: the required layout.
        output: the output.
        read: values of symbols.
        before: facts about the arguments.
        owners: maps each storage to the number of its required storage.
        starts: maps each required storage to its address.
    """
    if not output.numel() or layout.is_lazy:
        return ""
    mine = storage_id(output)
    if mine in before.memories:
        return "shares memory with an input, but must not"
    if owners.setdefault(mine, layout.storage) != layout.storage:
        return "shares memory with another output, but must not"
    start = output.data_ptr() - read(layout.offset) * output.element_size()
    if starts.setdefault(layout.storage, start) != start:
        return "does not share memory with another output, but must"
    return ""


def _placed(values: Sequence[torch.Tensor], layouts: Sequence[Layout], reader: Reader) -> list[torch.Tensor]:
    """Return copies of real tensors in one new block of memory with their layouts; dtypes may differ."""
    reads = [reader.knowing(layout.sizes, value.shape) for layout, value in zip(layouts, values, strict=True)]
    starts = [
        read(layout.offset) * layout.dtype.itemsize for layout, read in zip(layouts, reads, strict=True)
    ]
    # Start at a multiple of 16 bytes, where every dtype can start.
    first = min(starts) // 16 * 16
    ends = [
        start + _bytes(value, [read(step) for step in layout.strides])
        for value, layout, read, start in zip(values, layouts, reads, starts, strict=True)
    ]
    device = values[0].device
    memory = torch.empty(max(ends) - first, dtype=torch.uint8, device=device).untyped_storage()
    made: list[torch.Tensor] = []
    for value, layout, read, start in zip(values, layouts, reads, starts, strict=True):
        strides = [read(step) for step in layout.strides]
        view = torch.empty(0, dtype=layout.dtype, device=device)
        view = view.set_(memory, (start - first) // layout.dtype.itemsize, value.size(), strides)
        target = view
        for dim, step in enumerate(strides):
            if step == 0 and value.size(dim) > 1:
                target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        target.copy_(value)
        made.append(view)
    return made


def _bytes(value: torch.Tensor, strides: Sequence[int]) -> int:
    """Return the bytes from the first to the last element, with these strides."""
    if not value.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(value.size(), strides, strict=True))
    return (last + 1) * value.element_size()
