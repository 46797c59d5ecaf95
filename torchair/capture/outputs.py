"""The outputs of one recording: who owns their memory, who still holds it, how they are handed out.

An output is one of four things: a value that never changes for the key (a number, None); a view of an
input, tied again to the tensor of each call; a tensor without elements, made anew; or a tensor in memory the
recording owns. Of the last kind a fresh tensor object is handed out on every call, and the use count of its
storage tells whether anybody still holds it or a view of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

import torch

from torchair.capture.pool import extent
from torchair.capture.roles import Inputs
from torchair.core.errors import BadCall
from torchair.core.overlaps import is_dense
from torchair.core.torch_private.memory import neg_view, storage_id, storage_use_count

Copies = dict[int, torch.UntypedStorage]


@dataclass(frozen=True)
class Constant:
    """The same value on every call of this key."""

    value: Any

    def give(self, args: Sequence[Any]) -> Any:
        return self.value

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.value


@dataclass(frozen=True)
class Tied:
    """A view of input `source`. `shift` is in bytes from the first element of the input."""

    source: int
    name: str
    like: torch.Tensor  # on the meta device: dtype, size, stride of the output
    source_stride: tuple[int, ...]
    shift: int
    same: bool  # the output is the input

    def give(self, args: Sequence[Any]) -> Any:
        tensor = args[self.source]
        if self.same:
            return tensor
        if tensor.stride() != self.source_stride:
            raise BadCall(
                f"input {self.name} has other strides than the graph was recorded with",
                got=f"{tuple(tensor.stride())} instead of {self.source_stride}",
                next="pass tensors of one memory layout, or compile again for the other",
            )
        start = _start(tensor) + self.shift
        return _view(self.like, tensor.untyped_storage(), start // self.like.element_size(), tensor.device)

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.give(args)


@dataclass(frozen=True)
class Owned:
    """A tensor in the recording's memory; `alone`: no other output shares it, and a clone has its strides."""

    tensor: torch.Tensor
    alone: bool

    def give(self, args: Sequence[Any]) -> Any:
        return self.tensor.detach()

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        tensor = self.tensor
        if self.alone:
            return tensor.clone()
        storage = tensor.untyped_storage()
        copied = copies.get(storage._cdata)
        if copied is None:
            copied = copies[storage._cdata] = storage.clone()
        return _view(tensor, copied, int(tensor.storage_offset()), tensor.device)


@dataclass(frozen=True)
class Empty:
    """A tensor without elements. Versions of the recording's own would be counted over all calls."""

    tensor: torch.Tensor

    def give(self, args: Sequence[Any]) -> Any:
        tensor = self.tensor
        return tensor.new_empty_strided(tensor.size(), tensor.stride())

    def copy(self, args: Sequence[Any], copies: Copies) -> Any:
        return self.give(args)


class Homes:
    """Memory outside the pool for the outputs of one recording: no graph ever used it as workspace."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        with torch.inference_mode(False):
            self._blocks = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
        self.nbytes = sum(sizes)

    def take(self, outputs: Sequence[Any], args: Sequence[Any], inputs: Inputs) -> list[Any]:
        """Copy the owned outputs here, and return all with those replaced."""
        taken = list(outputs)
        groups = _owned(taken, args, inputs)
        for positions, block in zip(groups, self._blocks, strict=True):
            source = _span([taken[position] for position in positions])
            if source.numel() != block.numel():
                raise RuntimeError(f"an output has {source.numel()} bytes, in the run before {block.numel()}")
            block.copy_(source)
            for position in positions:
                tensor = taken[position]
                start = (_start(tensor) - source.storage_offset()) // tensor.element_size()
                taken[position] = _view(tensor, block.untyped_storage(), start, tensor.device)
        return taken


def home_sizes(outputs: Sequence[Any], args: Sequence[Any], inputs: Inputs) -> list[int]:
    """The sizes `Homes` needs for outputs like these."""
    return [_span([outputs[p] for p in positions]).numel() for positions in _owned(outputs, args, inputs)]


def _view(
    like: torch.Tensor, storage: torch.UntypedStorage, offset: int, device: torch.device
) -> torch.Tensor:
    """A tensor like another at a place in a storage, conjugated or negated on reading if that one is."""
    view = torch.empty(0, dtype=like.dtype, device=device)
    view = view.set_(storage, offset, like.size(), like.stride())
    view = view.conj() if like.is_conj() else view
    return neg_view(view) if like.is_neg() else view


def _owned(outputs: Sequence[Any], args: Sequence[Any], inputs: Inputs) -> list[list[int]]:
    """Positions of the outputs that are not views of inputs, those of one storage together."""
    owners = _owners(args)
    groups: dict[int, list[int]] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, torch.Tensor) and _source_of(position, output, owners, args, inputs) is None:
            groups.setdefault(storage_id(output), []).append(position)
    return list(groups.values())


def _span(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of one storage from the first to the last element of these tensors."""
    starts = [_start(tensor) for tensor in tensors]
    ends = [start + extent(tensor) for start, tensor in zip(starts, tensors, strict=True)]
    # Whole 16 bytes before the first element: every dtype can start there.
    first = min(starts) // 16 * 16
    span = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    return span.set_(tensors[0].untyped_storage(), first, (max(ends) - first,), (1,))


class Outputs:
    """How the outputs of one recording reach the caller."""

    def __init__(self, outputs: Sequence[Any], static_args: Sequence[Any], inputs: Inputs) -> None:
        owners = _owners(static_args)
        sharers = Counter(storage_id(o) for o in outputs if isinstance(o, torch.Tensor))
        self._steps: list[Constant | Tied | Empty | Owned] = []
        for position, output in enumerate(outputs):
            if not isinstance(output, torch.Tensor):
                self._steps.append(Constant(output))
                continue
            source = _source_of(position, output, owners, static_args, inputs)
            if source is None and not output.numel():
                self._steps.append(Empty(output))
            elif source is None:
                alone = sharers[storage_id(output)] == 1 and is_dense(output)
                self._steps.append(Owned(output, alone))
            else:
                self._steps.append(_tie(output, source, inputs.names[source], static_args[source]))
        owned = [step for step in self._steps if isinstance(step, Owned)]
        # All of them, if all are the recording's own.
        self.plain = [step.tensor for step in owned] if len(owned) == len(self._steps) else None
        self._storages = {storage_id(step.tensor): step.tensor.untyped_storage() for step in owned}
        self.nbytes = sum(storage.nbytes() for storage in self._storages.values())
        shared = {storage_id(step.tensor) for step in owned if not step.alone}
        self.copied_bytes = sum(step.tensor.nbytes for step in owned if step.alone)
        self.copied_bytes += sum(self._storages[key].nbytes() for key in shared)
        self.watched = [(key, storage) for key, storage in self._storages.items() if storage.nbytes()]
        # Counted last: from here on, more uses than these are the caller's.
        self._at_rest = self._uses()

    def _uses(self) -> list[tuple[int, int]]:
        """Uses of each storage; its Python object is one for everybody, so references to that count too."""
        return [(storage_use_count(key), getrefcount(storage)) for key, storage in self.watched]

    def held(self) -> bool:
        """Does anybody outside still hold an output, a view of one, or a numpy array on one?"""
        uses = self._uses()
        if uses == self._at_rest:
            return False
        return any(
            now[0] > rest[0] or now[1] > rest[1] for now, rest in zip(uses, self._at_rest, strict=True)
        )

    def give(self, args: Sequence[Any]) -> list[Any]:
        """The outputs themselves, as fresh tensor objects on the recording's memory."""
        if self.plain is not None:
            return [tensor.detach() for tensor in self.plain]
        return [step.give(args) for step in self._steps]

    def copy(self, args: Sequence[Any]) -> list[Any]:
        """Copies; outputs that shared memory share it again, views of inputs stay views of inputs."""
        copies: Copies = {}
        return [step.copy(args, copies) for step in self._steps]


def _owners(args: Sequence[Any]) -> dict[int, int]:
    """Storage -> index of the argument that lives there."""
    return {storage_id(arg): index for index, arg in enumerate(args) if isinstance(arg, torch.Tensor)}


def _source_of(
    position: int, output: torch.Tensor, owners: dict[int, int], static_args: Sequence[Any], inputs: Inputs
) -> int | None:
    """The input whose memory this output is; where inputs share it, the one of which the graph says so.
    Native programs alias in new storages: ask addresses.
    """
    for source, positions in inputs.aliases.items():
        if position not in positions or not isinstance(static_args[source], torch.Tensor):
            continue
        storage = static_args[source].untyped_storage()
        if 0 <= output.data_ptr() - storage.data_ptr() < storage.nbytes():
            return source
    return owners.get(storage_id(output))


def _tie(output: torch.Tensor, source: int, name: str, owner: torch.Tensor) -> Tied:
    shift = _start(output) - _start(owner)
    if storage_id(output) != storage_id(owner):
        shift = output.data_ptr() - owner.data_ptr()
    stride = tuple(owner.stride())
    same = (
        shift == 0
        and output.dtype == owner.dtype
        and output.size() == owner.size()
        and tuple(output.stride()) == stride
        and (output.is_conj(), output.is_neg()) == (owner.is_conj(), owner.is_neg())
    )
    memory = torch.empty(0, dtype=output.dtype, device="meta").untyped_storage()
    like = _view(output, memory, 0, torch.device("meta"))
    return Tied(source, name, like, stride, shift, same)


def _start(tensor: torch.Tensor) -> int:
    """Where its first element lies in its storage, or would: a tensor without elements has no address."""
    return int(tensor.storage_offset()) * tensor.element_size()
