"""Check the results of a program against the layouts that its graph promised.

An `OutputLayouts` has all layouts of a graph. `looks` returns the outputs that only need another view,
`faults` the outputs that differ from the promise, and `mend` corrects them. Strides of dims of size 1 and of
tensors without elements are part of the promise, but never cost a copy.
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
    """How an output of these sizes is looked at, where its elements are right and in their place."""

    place: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_owned: bool  # then it is nobody's view in autograd's books, and may be written in place

    def through(self, output: torch.Tensor) -> torch.Tensor:
        if output.shape != self.sizes:
            return output
        seen = output if output.stride() == self.strides else output.as_strided(self.sizes, self.strides)
        return seen.detach() if self.is_owned else seen


def looked_at(outputs: Sequence[Any], looks: Sequence[ViewFixup]) -> list[Any]:
    """The outputs, some of them seen otherwise."""
    made = list(outputs)
    for look in looks:
        made[look.place] = look.through(made[look.place])
    return made


@dataclass(frozen=True)
class Sameness:
    """Which outputs must be made one tensor object, and which must be told apart, in the order of calls."""

    joined: tuple[tuple[int, int], ...] = ()  # an output, and the one that it is
    apart: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.apart)

    def of(self, outputs: Sequence[Any]) -> list[Any]:
        """The outputs, the same memory in as many objects as the graph returns."""
        made = list(outputs)
        for place in self.apart:
            made[place] = made[place].detach()
        for place, first in self.joined:
            made[place] = made[first]
        return made


@dataclass(frozen=True)
class Before:
    """What must be remembered of the arguments of a call, which the program may drop."""

    read: Reader
    bases: dict[int, torch.Tensor]
    memories: dict[int, torch.Tensor]  # of arguments that are kept for the call


@dataclass(frozen=True)
class OutputLayouts:
    """The layouts of the outputs of one graph, and where its symbols are read from."""

    layouts: tuple[Layout | None, ...]
    binding: Binding = Binding(())  # noqa: RUF009 - it does not change
    written: tuple[int, ...] = ()  # inputs that the graph writes
    lets_go: bool = False  # arguments are dropped while the program runs, as those of a backward graph
    is_eager: bool = False  # the graph's own ops run: their strides are eager's, where fake tensors may err

    @cached_property
    def _bases(self) -> tuple[int, ...]:
        return tuple(
            {layout.base for layout in self.layouts if layout is not None and layout.base is not None}
        )

    @cached_property
    def is_static(self) -> bool:
        """Are all results laid out alike in every call of a key? Not where only the data decides sizes."""
        layouts = [layout for layout in self.layouts if layout is not None]
        return not any(layout.is_example or any(map(is_unbacked, layout.numbers)) for layout in layouts)

    @cached_property
    def left_out(self) -> tuple[int, ...]:
        """Outputs that no program makes."""
        layouts = enumerate(self.layouts)
        return tuple(place for place, layout in layouts if layout is not None and layout.is_left_out)

    @cached_property
    def marked(self) -> tuple[tuple[int, Any], ...]:
        """The calls that are made on results, after all else."""
        layouts = enumerate(self.layouts)
        return tuple((place, mark) for place, layout in layouts if layout for mark in layout.marks)

    @cached_property
    def _firsts(self) -> dict[int, int]:
        """Outputs in memory of their own, and the first output that is the same tensor."""
        found: dict[int, int] = {}
        for place, layout in enumerate(self.layouts):
            if layout is not None and layout.base is None and layout.first is not None:
                first = self.layouts[layout.first]
                # What is done to a result last makes another tensor of it.
                is_one = first is not None and first.marks == layout.marks
                found[place] = layout.first if is_one else place
        return found

    def sameness(self, outputs: Sequence[Any]) -> Sameness:
        """What makes of these outputs as many tensor objects as the graph returns: passes merge values that
        are equal, and replays hand out a fresh object for each output.
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
        """The outputs, with those that no program makes."""
        made = list(outputs)
        for place in self.left_out:
            layout = self.layouts[place]
            assert layout is not None and layout.base is not None, "what is left out is a view of an input"
            made[place] = layout.view(before.bases[layout.base], before.read)
        return made

    def before(self, args: Sequence[Any], *, looks: bool) -> Before:
        """To be asked before the program runs. Whose memory results may not share matters only where somebody
        `looks` for faults afterwards.
        """
        keeps = looks and not self.lets_go
        tensors = [arg for arg in args if keeps and isinstance(arg, torch.Tensor)]
        memories = {storage_id(tensor): tensor for tensor in tensors if tensor.layout is torch.strided}
        return Before(self.binding.reader(args), {index: args[index] for index in self._bases}, memories)

    def faults(self, before: Before, outputs: Sequence[Any]) -> dict[int, str]:
        """The outputs that are not as promised, by their place, and what is wrong."""
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
        """Outputs that differ from the promise only where no element tells: in strides of dims of size 1,
        without elements at all, or by being views of tensors of the program's. To look at them otherwise
        costs no copy.
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
        """The outputs as promised: an alias is a view of its input, the others are copied. Outputs of one
        storage are mended together.
        """
        mended = list(outputs)
        groups: dict[int, list[int]] = {}
        for place in wrong:
            layout = self.layouts[place]
            assert layout is not None, "only promises can be broken"
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
                # Only the data decides where they lie: each has at least memory of its own.
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
    return "" if is_same else f"is not the view of input {layout.base} that it should be"


def _look(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()


def _stride_fault(layout: Layout, output: torch.Tensor, read: Read) -> str:
    if lies(output, layout, read):
        return ""
    logger.info("strides %s instead of %s", tuple(output.stride()), tuple(map(read, layout.strides)))
    return "has other strides than it should have"


def _memory_fault(
    layout: Layout,
    output: torch.Tensor,
    read: Read,
    before: Before,
    owners: dict[int, int],
    starts: dict[int, int],
) -> str:
    """Does it share memory with whom it should, and with nobody else? `owners` has the promised storage of
    each storage, `starts` where each promised storage begins.
    """
    if not output.numel() or layout.is_lazy:
        return ""
    mine = storage_id(output)
    if mine in before.memories:
        return "shares memory with an input, and should not"
    if owners.setdefault(mine, layout.storage) != layout.storage:
        return "shares memory with another output, and should not"
    start = output.data_ptr() - read(layout.offset) * output.element_size()
    if starts.setdefault(layout.storage, start) != start:
        return "shares no memory with another output, and should"
    return ""


def _placed(values: Sequence[torch.Tensor], layouts: Sequence[Layout], reader: Reader) -> list[torch.Tensor]:
    """Copies of real tensors in one new piece of memory, each where its layout says; dtypes may differ."""
    reads = [reader.knowing(layout.sizes, value.shape) for layout, value in zip(layouts, values, strict=True)]
    starts = [
        read(layout.offset) * layout.dtype.itemsize for layout, read in zip(layouts, reads, strict=True)
    ]
    # Whole 16 bytes before the first element: every dtype can start there.
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
    """From the first to the last element, with these strides."""
    if not value.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(value.size(), strides, strict=True))
    return (last + 1) * value.element_size()
