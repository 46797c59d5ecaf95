"""One recording: a device graph with its static inputs, the addresses it uses and its outputs."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

import torch

from torchair.capture.base.inputs import InputInfo, Role, repeated_dims
from torchair.capture.base.output_buffers import OutputBuffer
from torchair.capture.recording.memory_pool import StaticInputArena
from torchair.capture.recording.outputs import COPY_OUT, Outputs, OutputSize, move
from torchair.core.errors import BadCall, first_line
from torchair.core.native.fast_replay import Addresses, Repeat
from torchair.core.native.memory_overlap import is_dense
from torchair.core.program import Program
from torchair.core.torch_private.device.memory import STORAGE_WRAPPER_USES, storage_id, storage_use_count
from torchair.core.torch_private.fake.fake_tensors import TorchDispatchMode
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.devices import CaptureTarget, Copy, Device, Graph, InputCopyNodes
from torchair.devices.input_copy_nodes import FEW, is_bytes


def _one_owner() -> int:
    tensor = torch.empty(1)
    kept = [tensor.untyped_storage()]
    return getrefcount(kept[0])


ONE_OWNER = _one_owner()
"""References to the Python object of a storage that a tensor and one list hold."""


class StaticInputs:
    """The buffers from which a recording reads its plain inputs, and the copies into them. The graph makes
    some of these copies itself if it can (`in_graph`); the others are made before its launch.
    """

    def __init__(
        self,
        inputs: InputInfo,
        args: Sequence[Any],
        arena: StaticInputArena | None,
        *,
        in_graph: bool = False,
    ) -> None:
        self._names = inputs.names
        self.indices = [i for i in inputs.having(Role.PLAIN, Role.ALIAS) if isinstance(args[i], torch.Tensor)]
        # Without an arena, the tensors of this call serve as buffers.
        self.borrowed = arena is None
        self.buffers = [
            args[i].detach() if arena is None else arena.like(i, _as_traced(args[i], inputs.repeated(i)))
            for i in self.indices
        ]
        self._shapes = [buffer.shape for buffer in self.buffers]
        self._flat = {at: dims for at, b in enumerate(self.buffers) if (dims := repeated_dims(b))}
        self._targets = [_flattened(b, self._flat.get(at, ())) for at, b in enumerate(self.buffers)]
        # Addresses the graph reads from. The owner of a borrowed buffer can free its memory.
        self._places = [buffer.data_ptr() for buffer in self.buffers]
        self.head: InputCopyNodes | None = None
        self._in_head = self._plain_copies(args) if in_graph and arena is not None else []
        self._filled = [at for at, b in enumerate(self.buffers) if b.numel() and at not in self._in_head]
        self._selects = self.borrowed or len(self._filled) != len(self.buffers)
        self.sizes = [target.nbytes for target in self._targets]
        own = {id(tensor): tensor for tensor in (*self.buffers, *self._targets)}
        self._own_uses = Counter(storage_id(tensor) for tensor in own.values())
        # A caller that holds a storage itself holds its Python object, which is unique.
        self._storages = [b.untyped_storage() for b in self.buffers] if self.borrowed else []

    def borrowed_inputs(self) -> list[tuple[int, torch.Tensor]]:
        """Return the borrowed buffers with their input indices. An input that still has that address needs no
        copy.
        """
        return list(zip(self.indices, self.buffers, strict=True)) if self.borrowed else []

    def targets(self) -> list[tuple[int, torch.Tensor]] | None:
        """Return the input indices and buffers, those that the graph fills first. Return None if filling a
        buffer takes more than a copy.
        """
        if self.borrowed:
            return []
        if self._flat:
            return None
        order = sorted(range(len(self.buffers)), key=lambda at: at not in self._in_head)
        return [(self.indices[at], self.buffers[at]) for at in order]

    def _plain_copies(self, args: Sequence[Any]) -> list[int]:
        """Return the buffers that the graph fills: those that need a plain copy of bytes, if there are few of
        them.
        """
        plain = [
            at
            for at, buffer in enumerate(self.buffers)
            if buffer.numel() and is_dense(buffer) and is_bytes(args[self.indices[at]], buffer)
        ]
        return plain if len(plain) <= FEW else []

    def copies(self, args: Sequence[Any]) -> list[Copy]:
        """Return the copies that the graph makes itself, as pairs (buffer, input)."""
        return [(self.buffers[at], args[self.indices[at]]) for at in self._in_head]

    def place(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments to record with."""
        placed = list(args)
        for index, buffer in zip(self.indices, self.buffers, strict=True):
            placed[index] = buffer
        return placed

    def check(self, args: Sequence[Any]) -> None:
        """Raise `BadCall` if a shape differs: the copy into the buffer would broadcast."""
        if [args[i].shape for i in self.indices] == self._shapes:
            return
        for i, shape in zip(self.indices, self._shapes, strict=True):
            if args[i].shape != shape:
                raise BadCall(
                    f"input {self._names[i]} has a shape that differs from the recorded one",
                    got=f"{tuple(args[i].shape)}, expected {tuple(shape)}",
                    next="call the function that torch.compile returned: its guards handle new shapes",
                )

    def fill(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Pass the addresses of plain inputs to the graph, and copy the others into their buffers in one
        launch. The caller must keep the result until the graph was launched.
        """
        sources = [args[i] for i in self.indices]
        targets = self._targets
        if self._flat:
            for at, dims in self._flat.items():
                sources[at] = _flattened(sources[at], dims)
        if self._selects:
            wanted = [at for at in self._filled if sources[at].data_ptr() != self._places[at]]
            sources, targets = [sources[at] for at in wanted], [targets[at] for at in wanted]
        if sources:
            torch._foreach_copy_(targets, sources, non_blocking=True)
        return [] if self.head is None else self.head.point([args[self.indices[at]] for at in self._in_head])

    def in_use(self, args: Sequence[Any]) -> int | None:
        """Return the index of an input whose borrowed buffer must be overwritten while its owner still holds
        it, or whose memory was freed (`resize_`).
        """
        if not self.borrowed:
            return None
        for at, (index, buffer) in enumerate(zip(self.indices, self.buffers, strict=True)):
            if args[index].data_ptr() == self._places[at]:
                continue
            key = storage_id(buffer)
            own = self._own_uses[key] + STORAGE_WRAPPER_USES
            is_held = storage_use_count(key) > own or getrefcount(self._storages[at]) > ONE_OWNER
            if is_held or buffer.data_ptr() != self._places[at]:
                return index
        return None


def can_alias_inputs(inputs: InputInfo, args: Sequence[Any]) -> bool:
    """Return whether the memory of plain inputs can serve as their buffers. It cannot in these cases:

    * two inputs share a storage, because those of a later call may not;
    * elements overlap, but not in the graph;
    * reading applies a conjugate or negative bit;
    * other holders of the memory are unknown to torch (numpy, other processes).
    """
    indices = [i for i in inputs.having(Role.PLAIN, Role.ALIAS) if isinstance(args[i], torch.Tensor)]
    given = [args[i] for i in indices]
    storages = [tensor.untyped_storage() for tensor in given if tensor.numel()]
    is_alone = len({storage._cdata for storage in storages}) == len(storages)
    is_known = all(map(_is_torchs_own, storages))
    is_read_otherwise = any(tensor.is_conj() or tensor.is_neg() for tensor in given)
    is_shared = any(_shares_elements(args[i], inputs.repeated(i)) for i in indices)
    return is_alone and is_known and not is_read_otherwise and not is_shared


def _is_torchs_own(storage: torch.UntypedStorage) -> bool:
    return storage.resizable() and (storage.device.type != "cpu" or not storage.is_shared())


def _shares_elements(tensor: torch.Tensor, repeated: tuple[int, ...]) -> bool:
    """Return whether elements overlap in dimensions that are not `repeated` in the graph. Without guards,
    those of the next call may not overlap.
    """
    return not set(repeated_dims(tensor)) <= set(repeated)


def _as_traced(tensor: torch.Tensor, repeated: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with the layout of a buffer that can hold the inputs of other calls."""
    if not _shares_elements(tensor, repeated):
        return tensor
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _flattened(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the tensor with dimensions of stride 0 reduced to one element, so that a copy writes it only
    once.
    """
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


class UncapturedWork(RuntimeError):
    """Raised for work that a recording would lose."""


class CannotRecord(RuntimeError):
    """An op that broke a recording, and the index of its call among the calls of this op."""

    def __init__(self, op: OpOverload, place: int, error: Exception) -> None:
        super().__init__(f"{op}: {first_line(error)}")
        self.op = op
        self.place = place


class CaptureMonitor(TorchDispatchMode):
    """Raise if an op runs on a stream that is not being captured. Such an op would run once, now, on data
    that is not there yet, and never again in a replay.
    """

    def __init__(self, row: Device) -> None:
        super().__init__()
        self._row = row
        self._calls: Counter[OpOverload] = Counter()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls[func] += 1
        try:
            result = func(*args, **(kwargs or {}))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise CannotRecord(func, self._calls[func] - 1, error) from error
        if func.is_view or self._row.is_capturing():
            return result
        made = result if isinstance(result, list | tuple) else [result]
        if any(isinstance(value, torch.Tensor) and value.device.type == self._row.type for value in made):
            raise UncapturedWork(
                f"{func} was launched on a stream that is not captured; call wait_stream() so that its "
                "stream waits for the current one"
            )
        return result


@dataclass(eq=False)
class Recording:
    """A device graph that can be replayed with new data."""

    graph: Graph
    statics: StaticInputs
    ledger: Addresses
    places: Addresses
    """Addresses of everything that it reads without a copy: those of the ledger and those of borrowed inputs.
    """
    outputs: Outputs
    home: OutputBuffer | None
    """The buffer of its outputs; None if they stay in the pool."""
    private: bool
    """Whether its outputs are always copied out."""
    count: array[int] = field(default_factory=lambda: array("Q", [0]))
    """Number of its replays."""
    nbytes: int = 0
    """Bytes allocated for it, including its outputs."""
    own_bytes: int = 0
    """Bytes of these that no other recording uses."""
    bytes_out: int = 0
    """Bytes copied out on each call."""
    seconds: float = 0.0
    draws: bool = True
    """Whether its replays advance the random generator. The first replay determines this."""
    repeat: Repeat | None = None
    """Fast path for a call that repeats the previous one; set after the first replay."""

    def __post_init__(self) -> None:
        self.fill = self.statics.fill

    def replay(self, args: Sequence[Any]) -> list[Any]:
        """Copy the inputs, launch the graph, return the outputs."""
        kept = self.fill(args)
        self.count[0] += 1
        self.graph.replay()
        del kept
        return self.outputs.copy(args) if self.private else self.outputs.give(args)

    @property
    def replays(self) -> int:
        """Number of replays."""
        return self.count[0]

    def is_free(self) -> bool:
        """Return whether its outputs may be overwritten."""
        return self.private or not self.outputs.held()

    def drop(self) -> None:
        """Free the graph. Outputs that the caller holds stay valid."""
        if self.repeat is not None:
            self.repeat.end()
        self.graph.reset()


@dataclass(frozen=True)
class RecordingPlan:
    """How to record one graph."""

    row: Device
    into: CaptureTarget
    arena: StaticInputArena | None = None
    """Provides the buffers of plain inputs. None: the tensors of the call serve as buffers."""
    home: OutputBuffer | None = None
    """The buffer to which the graph copies its outputs at its end."""
    output_sizes: Sequence[OutputSize] = ()
    """The bytes of the outputs there."""
    private: bool = False
    in_graph: bool = False
    """Whether the graph starts with copies of its inputs."""


def record(
    program: Program, args: Sequence[Any], inputs: InputInfo, watched: list[int], plan: RecordingPlan
) -> Recording:
    """Record one run with these arguments. Nothing executes: inputs and random state stay as they are."""
    started = time.perf_counter()
    into, home, row = plan.into, plan.home, plan.row
    statics = StaticInputs(inputs, args, plan.arena, in_graph=plan.in_graph)
    placed = statics.place(args)
    before = row.reserved_bytes(into.device)

    def run(own: list[Any]) -> list[Any]:
        kept = list(own)  # the program may clear its list
        with CaptureMonitor(row):
            results = program(own)
        return results if home is None else move(results, kept, inputs, home, plan.output_sizes)

    copies = statics.copies(args)
    graph, results = row.record(run, list(placed), into, copies)
    if copies:
        try:
            statics.head = row.head(graph, copies, into.device)
        except BaseException:
            graph.reset()
            raise
    outputs = Outputs(results, placed, inputs, COPY_OUT if plan.private else home)
    ledger = Addresses(watched, args)
    places = Addresses([*watched, *(index for index, _ in statics.borrowed_inputs())], args)
    made = Recording(graph, statics, ledger, places, outputs, home, plan.private)
    reserved = row.reserved_bytes(into.device) - before
    made.nbytes = max(reserved, outputs.nbytes)
    made.own_bytes = made.nbytes if home is None else reserved
    made.bytes_out = outputs.copied_bytes if plan.private else outputs.nbytes if home else 0
    made.seconds = time.perf_counter() - started
    return made
