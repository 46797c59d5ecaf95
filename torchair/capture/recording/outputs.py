"""The outputs of one recording: which memory they use, whether the caller holds them, how they are returned.

An output is one of five things:

* a value that never changes for the key (a number, None);
* a view of an input, created again on the tensor of each call;
* a tensor without elements, created anew;
* a tensor in memory of the recording;
* the same tensor as an earlier output.

A tensor in the recording's memory is returned as a new object on every call. The use count of its storage
shows whether the caller still holds it or a view of it. That memory is in the pool, or is an output buffer
that other recordings use, too (`output_buffers.py`). If outputs are always copied out, it is memory of the
pool that later graphs may reuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from torchair.capture.base.inputs import InputInfo
from torchair.capture.base.output_buffers import OutputBuffer
from torchair.capture.recording.memory_pool import extent
from torchair.core.errors import BadCall
from torchair.core.native.fast_replay import OutputLease, clones, make_outputs, view_on
from torchair.core.native.memory_overlap import is_dense
from torchair.core.torch_private.device.memory import borrow_memory, storage_id

Copies = dict[int, torch.UntypedStorage]


@dataclass(frozen=True)
class ConstantOutput:
    """An output with the same value on every call of this key."""

    value: Any

    def give(self, args: Sequence[Any]) -> Any:
        return self.value

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.value


@dataclass(frozen=True)
class InputAlias:
    """A view of input `source`. `shift` is in bytes from the first element of the input."""

    source: int
    name: str
    like: torch.Tensor  # on the meta device: dtype, size, stride of the output
    source_stride: tuple[int, ...]
    source_bits: tuple[bool, bool]
    shift: int
    same: bool  # the output is the input

    def give(self, args: Sequence[Any]) -> Any:
        tensor = args[self.source]
        if self.same:
            return tensor
        if tensor.stride() != self.source_stride:
            raise BadCall(
                f"input {self.name} has strides that differ from those of the recorded graph",
                got=f"{tuple(tensor.stride())}, expected {self.source_stride}",
                next="pass tensors with one memory layout, or compile the model again for this one",
            )
        if _bits(tensor) != self.source_bits:
            raise BadCall(
                f"input {self.name} has other conjugate or negative bits than in the recorded graph",
                next="pass tensor.resolve_conj().resolve_neg()",
            )
        start = _start(tensor) + self.shift
        return view_on(self.like, tensor.untyped_storage(), start // self.like.element_size())

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.give(args)


@dataclass(frozen=True)
class OwnedOutput:
    """A tensor in memory of the recording. It is like `like`, on the storage with index `at`. If `alone` is
    True, no other output shares its storage and a clone has its strides.
    """

    at: int
    like: torch.Tensor
    alone: bool

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        like = self.like
        if self.alone:
            return clones([like])[0]
        storage = like.untyped_storage()
        copied = copies.get(storage._cdata)
        if copied is None:
            copied = copies[storage._cdata] = storage.clone()
        return view_on(like, copied, int(like.storage_offset()))


@dataclass(frozen=True)
class EmptyOutput:
    """A tensor without elements. It is created anew, because its version would count over all calls."""

    tensor: torch.Tensor

    def give(self, args: Sequence[Any]) -> Any:
        tensor = self.tensor
        return tensor.new_empty_strided(tensor.size(), tensor.stride())

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.give(args)


@dataclass(frozen=True)
class RepeatedOutput:
    """The same tensor object as output `place`."""

    place: int


class OutputSize(NamedTuple):
    """The outputs in one storage, and their bytes."""

    places: list[int]
    nbytes: int


def output_sizes(outputs: Sequence[Any], args: Sequence[Any], inputs: InputInfo) -> list[OutputSize]:
    """Return the memory that these outputs need in addition to the memory of the inputs."""
    groups = _owned(outputs, args, inputs)
    return [OutputSize(places, _span([outputs[place] for place in places]).numel()) for places in groups]


def move(
    outputs: Sequence[Any],
    args: Sequence[Any],
    inputs: InputInfo,
    home: OutputBuffer,
    sizes_before: Sequence[OutputSize],
) -> list[Any]:
    """Copy outputs in memory of the recording to an output buffer. Return all outputs with those replaced."""
    moved = list(outputs)
    repeated = _repeated(outputs)
    found = output_sizes(outputs, args, inputs)
    if found != sizes_before:
        sizes = [[size.nbytes for size in each] for each in (found, sizes_before)]
        raise RuntimeError(f"outputs have {sizes[0]} bytes, but had {sizes[1]} bytes in the warm-up run")
    for size, storage in zip(sizes_before, home.rest.storages, strict=True):
        source = _span([moved[place] for place in size.places])
        target = torch.empty(0, dtype=torch.uint8, device=source.device)
        target.set_(storage, 0, source.size(), source.stride()).copy_(source)
        for place in size.places:
            tensor = moved[place]
            start = (_start(tensor) - source.storage_offset()) // tensor.element_size()
            moved[place] = view_on(tensor, storage, start)
    for place, first in repeated.items():
        moved[place] = moved[first]
    return moved


def _repeated(outputs: Sequence[Any]) -> dict[int, int]:
    """Map each output that repeats an earlier output to that output."""
    firsts: dict[int, int] = {}
    tensors = [place for place, output in enumerate(outputs) if isinstance(output, torch.Tensor)]
    pairs = [(place, firsts.setdefault(id(outputs[place]), place)) for place in tensors]
    return {place: first for place, first in pairs if place != first}


def _owned(outputs: Sequence[Any], args: Sequence[Any], inputs: InputInfo) -> list[list[int]]:
    """Return the positions of the outputs that are not views of inputs, grouped by storage."""
    owners = _owners(args)
    groups: dict[int, list[int]] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, torch.Tensor) and _source_of(position, output, owners, args, inputs) is None:
            groups.setdefault(storage_id(output), []).append(position)
    return list(groups.values())


def _span(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of one storage from the first to the last element of these tensors."""
    starts = [_start(tensor) for tensor in tensors]
    ends = [start + extent(tensor) for start, tensor in zip(starts, tensors, strict=True)]
    # Start at a multiple of 16 bytes, where every dtype can start.
    first = min(starts) // 16 * 16
    span = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    return span.set_(tensors[0].untyped_storage(), first, (max(ends) - first,), (1,))


class OutputPlacement(Enum):
    """Marker in place of an output buffer: outputs stay in the recording, and copies are returned."""

    COPY_OUT = "copied"


COPY_OUT = OutputPlacement.COPY_OUT


class Outputs:
    """How the outputs of one recording reach the caller: from an output buffer, from the pool if they stay
    there (None), or, if they are always copied out, from memory that the pool may reuse.
    """

    def __init__(
        self,
        outputs: Sequence[Any],
        static_args: Sequence[Any],
        inputs: InputInfo,
        home: OutputBuffer | OutputPlacement | None = None,
    ) -> None:
        owners = _owners(static_args)
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        sharers = Counter(map(storage_id, {id(output): output for output in tensors}.values()))
        sources = {
            position: _source_of(position, output, owners, static_args, inputs)
            for position, output in enumerate(outputs)
            if isinstance(output, torch.Tensor)
        }
        ours = [outputs[at] for at, source in sources.items() if source is None and outputs[at].numel()]
        memory = _Memory(ours, home)
        self.rest = memory.rest
        self._steps: list[ConstantOutput | InputAlias | EmptyOutput | OwnedOutput | RepeatedOutput] = []
        again = _repeated(outputs)
        for position, output in enumerate(outputs):
            source = sources.get(position)
            if position in again:
                self._steps.append(RepeatedOutput(again[position]))
            elif position not in sources:
                self._steps.append(ConstantOutput(output))
            elif source is not None:
                self._steps.append(_tie(output, source, inputs.names[source], static_args[source]))
            elif not output.numel():
                self._steps.append(EmptyOutput(output))
            else:
                alone = sharers[storage_id(output)] == 1 and is_dense(output)
                self._steps.append(OwnedOutput(*memory.of(output), alone))
        owned = [step for step in self._steps if isinstance(step, OwnedOutput)]
        self._owned = [(step.at, step.like) for step in owned]
        # All outputs, if each of them is in memory of the recording.
        self.plain = self._owned if len(owned) == len(self._steps) else None
        self.nbytes = memory.nbytes
        self.copied_bytes = sum(step.like.nbytes for step in owned if step.alone)
        shared = {
            storage_id(step.like): step.like.untyped_storage().nbytes() for step in owned if not step.alone
        }
        self.copied_bytes += sum(shared.values())

    def held(self) -> bool:
        """Return whether the caller still holds an output, a view of one, or a numpy array on one. For an
        output buffer, outputs of other recordings count, too.
        """
        return not self.rest.is_free()

    def give(self, args: Sequence[Any]) -> list[Any]:
        """Return the outputs as new tensor objects on the memory of the recording."""
        handed = make_outputs(self._owned, self.rest)
        if self.plain is not None:
            return handed
        ours = iter(handed)
        return self._each_once(lambda step: next(ours) if isinstance(step, OwnedOutput) else step.give(args))

    def copy(self, args: Sequence[Any]) -> list[Any]:
        """Return copies. Outputs that share memory still share it; views of inputs stay views of inputs."""
        copies: Copies = {}
        return self._each_once(lambda step: step.copy(args, copies))

    def _each_once(
        self, made_by: Callable[[ConstantOutput | InputAlias | EmptyOutput | OwnedOutput], Any]
    ) -> list[Any]:
        """Return all outputs, each created once."""
        made: list[Any] = []
        for step in self._steps:
            made.append(made[step.place] if isinstance(step, RepeatedOutput) else made_by(step))
        return made


class _Memory:
    """The memory of the outputs."""

    def __init__(self, outputs: Sequence[torch.Tensor], home: OutputBuffer | OutputPlacement | None) -> None:
        found = {storage_id(output): output for output in outputs}
        spans = {key: _span([o for o in outputs if storage_id(o) == key]) for key in found}
        self.nbytes = sum(span.numel() for span in spans.values())
        self._looks: dict[int, torch.UntypedStorage] = {}
        if home is not None:
            # A borrowed tensor does not count as a use of the storage, so the memory may be reused or freed.
            for key, span in spans.items():
                end = int(span.storage_offset()) + span.numel()
                start = span.untyped_storage().data_ptr()
                look = borrow_memory(start, end, torch.uint8, span.device)
                self._looks[key] = look.untyped_storage()
        if isinstance(home, OutputBuffer):
            self._at = {storage._cdata: at for at, storage in enumerate(home.rest.storages)}
            self.rest = home.rest
            return
        self._at = {key: at for at, key in enumerate(found)}
        del found, spans
        storages = {storage_id(output): output.untyped_storage() for output in outputs}
        kept = [] if home is COPY_OUT else list(storages.values())
        del storages
        # Counted last: from here on, every additional use is the caller's.
        self.rest = OutputLease(kept)

    def of(self, output: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return the index of the storage of this output, and a template that lives as long."""
        key = storage_id(output)
        look = self._looks.get(key)
        like = output if look is None else view_on(output, look, int(output.storage_offset()))
        return self._at[key], like


def _owners(args: Sequence[Any]) -> dict[int, int]:
    """Map each storage to the index of the argument in it."""
    return {storage_id(arg): index for index, arg in enumerate(args) if isinstance(arg, torch.Tensor)}


def _source_of(
    position: int, output: torch.Tensor, owners: dict[int, int], static_args: Sequence[Any], inputs: InputInfo
) -> int | None:
    """Return the input whose memory this output uses. If inputs share it, the graph decides which one. Native
    programs create new storages for aliases, so addresses are compared.
    """
    for source, positions in inputs.aliases.items():
        if position not in positions or not isinstance(static_args[source], torch.Tensor):
            continue
        storage = static_args[source].untyped_storage()
        if 0 <= output.data_ptr() - storage.data_ptr() < storage.nbytes():
            return source
    return owners.get(storage_id(output))


def _tie(output: torch.Tensor, source: int, name: str, owner: torch.Tensor) -> InputAlias:
    shift = _start(output) - _start(owner)
    if storage_id(output) != storage_id(owner):
        shift = output.data_ptr() - owner.data_ptr()
    stride = tuple(owner.stride())
    same = (
        shift == 0
        and output.dtype == owner.dtype
        and output.size() == owner.size()
        and tuple(output.stride()) == stride
        and _bits(output) == _bits(owner)
    )
    memory = torch.empty(0, dtype=output.dtype, device="meta").untyped_storage()
    like = view_on(output, memory, 0)
    return InputAlias(source, name, like, stride, _bits(owner), shift, same)


def _bits(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Return the conjugate bit and the negative bit."""
    return tensor.is_conj(), tensor.is_neg()


def _start(tensor: torch.Tensor) -> int:
    """Return the offset of the first element in bytes. Tensors without elements have no address."""
    return int(tensor.storage_offset()) * tensor.element_size()
