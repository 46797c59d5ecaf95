"""A simulated graph device on CPU tensors, as strict as a real one.

Capturing executes nothing that can be seen: inputs and random state are as before, outputs are garbage
until the first replay. A replay runs the program on the captured tensors and writes into the captured
outputs. Copies at the head of a graph move bytes from address to address, as the runtime of a device does.
Graphs of one pool overlay their workspace in the worst way: a replay overwrites whatever later
graphs of the pool allocated. Replaying a graph that was reset is an error, and so is launching from two
threads at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchair.capture import CompiledProgram, InputInfo, Policy, Role, Runner, capture
from torchair.capture.base.inputs import KeyPart
from torchair.core.torch_private.device.memory import borrow_tensor
from torchair.devices import CaptureTarget, Device, InputCopyNodes, get_device, installed
from torchair.devices.input_copy_nodes import FORGET, SETTER, Calls

CPU = torch.device("cpu")
# Ops that wait for the device, beside those that torch has tagged.
WAITS = (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default)


class Allocations(TorchDispatchMode):
    """Collects the storages that ops allocate, and what arguments held before they were written. Memory that
    is neither is not written at all: another thread may be reading it.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self.given = {storage(arg) for arg in args if isinstance(arg, torch.Tensor)}
        self.storages: set[int] = set()
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if {torch.Tag.data_dependent_output, torch.Tag.cudagraph_unsafe} & set(func.tags) or func in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func._schema.is_mutable and isinstance(args[0], torch.Tensor) and args[0].numel():
            memory = args[0].untyped_storage()
            is_foreign = memory._cdata not in self.storages and memory._cdata not in self.given
            if is_foreign and func is torch.ops.aten.copy_.default:
                return args[0]
            if memory._cdata not in self.storages and memory._cdata not in self.before:
                self.before[memory._cdata] = memory, memory.clone()
        result = func(*args, **(kwargs or {}))
        known = {storage(value) for value in args if isinstance(value, torch.Tensor)}
        if isinstance(result, torch.Tensor) and storage(result) not in known:
            self.storages.add(storage(result))
        return result


def is_there(tensor: Any, at: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.data_ptr() == at.data_ptr()


def once(tensor: torch.Tensor) -> torch.Tensor:
    """Without the dimensions whose elements are one."""
    for dim, step in enumerate(tensor.stride()):
        tensor = tensor.narrow(dim, 0, 1) if step == 0 and tensor.size(dim) > 1 else tensor
    return tensor


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class SimulatedGraph:
    """A recorded run: the program, the tensors it was recorded with, and the outputs it writes."""

    def __init__(
        self, device: SimulatedDevice, program: Any, args: list[Any], pool: Any, copies: Any
    ) -> None:
        self.device = device
        self.program: Any = program
        self.copies = [[target.data_ptr(), source.data_ptr(), target.nbytes] for target, source in copies]
        # A graph knows addresses, not tensors: `p.data = …` moves a tensor, and another may live there then.
        self.args = [
            (weakref.ref(a), borrow_tensor(a)) if isinstance(a, torch.Tensor) else (lambda a=a: a, a)
            for a in args
        ]
        self.alive = True
        self.neighbours = device.graphs.setdefault(pool, [])
        self.place = len(self.neighbours)
        saved = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        random = torch.get_rng_state()
        device.capturing = True
        allocations = Allocations(args)
        try:
            with allocations:
                outputs = program(list(args))
        finally:
            device.capturing = False
            torch.set_rng_state(random)
            for memory, value in allocations.before.values():
                memory.copy_(value)
            allocations.before.clear()
            for arg, value in zip(args, saved, strict=True):
                if isinstance(arg, torch.Tensor) and arg.numel() and 0 not in arg.stride():
                    arg.data.copy_(value)  # not a write that autograd counts
        mine = {storage(a) for a in args if isinstance(a, torch.Tensor)}
        self.written = [isinstance(o, torch.Tensor) and storage(o) not in mine for o in outputs]
        self.recorded = [outputs]  # for who records
        # It holds on to no tensor of the caller's.
        self.outputs = [o if written else None for o, written in zip(outputs, self.written, strict=True)]
        self.in_pool = [o for o in self.outputs if o is not None and storage(o) in allocations.storages]
        # Memory outside the pool is not the graph's: it knows where it is.
        self.outputs = [
            o if o is None or storage(o) in allocations.storages else borrow_tensor(o) for o in self.outputs
        ]
        self.neighbours.append(self)
        for output in self.in_pool:
            output.untyped_storage().fill_(0xA5)

    def replay(self) -> None:
        assert self.alive, "a graph was replayed after reset"
        assert not self.device.launching, "two launches at once"
        self.device.launching = True
        self.device.replays += 1
        for later in self.neighbours[self.place + 1 :]:
            for output in later.in_pool:
                output.untyped_storage().fill_(0xA5)
        for target, source, size in self.copies:
            ctypes.memmove(target, source, size)
        self.device.local.replaying = True
        results = self.program([tensor() if is_there(tensor(), at) else at for tensor, at in self.args])
        self.device.local.replaying = False
        for output, written, result in zip(self.outputs, self.written, results, strict=True):
            if written and output is not None:
                once(output).copy_(once(result))
        self.device.launching = False

    def reset(self) -> None:
        assert self.alive, "a graph was reset twice"
        self.alive = False
        self.program = None  # with all that it kept
        self.device.live -= 1
        self.device.forget(self)


class SimulatedDevice(Device):
    """A device in CPU memory."""

    has_graphs = True

    def __init__(self, *, random: bool = True, copies: bool = True) -> None:
        super().__init__("cpu")
        self.copies_inside = copies
        self._random = random
        self.status = 0  # what giving a copy another source answers
        self.forgotten = 0  # errors
        self.head_error: Exception | None = None
        self._forget = FORGET(self._count_forgotten)
        self.moves: list[tuple[int, int]] = []  # copies that were given one: bytes, kind
        self._setter = SETTER(self._set)
        self._by_number: dict[int, SimulatedGraph] = {}
        self.capturing = self.launching = False
        self.graphs: dict[Any, list[SimulatedGraph]] = {}
        self.records = self.replays = self.live = self.pools = 0
        self.orders: list[tuple[str, str]] = []
        self.tokens: list[tuple[int, int]] = []
        self.error_modes: list[str] = []
        self.advances = True
        self.on_record: Callable[[], None] = lambda: None
        self.local = threading.local()

    def why_no_graphs(self) -> str | None:
        return None

    def has_fresh_random(self) -> bool:
        return self._random

    def random_offset(self, device: torch.device) -> int:
        return hash(bytes(torch.get_rng_state().numpy())) if self.advances else 0

    def new_pool(self) -> tuple[int, int]:
        self.pools += 1
        return (self.pools, 0)

    def stream_name(self) -> str:
        return getattr(self.local, "name", "default")

    def stream_handle(self) -> Callable[[int], int]:
        return lambda index: hash(self.stream_name())

    def current_stream(self, device: torch.device) -> Any:
        return self.stream_name()

    def new_stream(self, device: torch.device) -> Any:
        return "capture"

    def order(self, before: Any, after: Any) -> None:
        self.orders.append((before, after))

    @property
    def is_capturing(self) -> Callable[[], bool]:
        return self._is_capturing

    def _is_capturing(self) -> bool:
        # A replay runs the program again, with whatever watches over a capture.
        return self.capturing or getattr(self.local, "replaying", False)

    def synchronize(self, device: torch.device) -> None: ...

    def empty_cache(self) -> None: ...

    def reserved_bytes(self, device: torch.device) -> int:
        return 0

    def head(self, graph: Any, copies: Any, device: Any) -> InputCopyNodes:
        if self.head_error is not None:
            raise self.head_error
        self._by_number[number := self.records] = graph
        setter, forget = (
            ctypes.cast(call, ctypes.c_void_p).value or 0 for call in (self._setter, self._forget)
        )
        calls = Calls(setter, kind=3, guard=contextlib.nullcontext, forget_error=forget)
        return InputCopyNodes(copies, range(1, len(copies) + 1), number, calls)

    def _count_forgotten(self) -> int:
        self.forgotten += 1
        return self.status

    def _set(self, graph: int, node: int, target: int, source: int, size: int, kind: int) -> int:
        self.moves.append((size, kind))
        if self.status == 0:
            copy = self._by_number[graph].copies[node - 1]
            assert [copy[0], copy[2]] == [target, size], "only the source may change"
            copy[1] = source
        return self.status

    def forget(self, graph: SimulatedGraph) -> None:
        self._by_number = {number: known for number, known in self._by_number.items() if known is not graph}

    def launcher(self, graph: Any) -> Callable[[], None]:
        return graph.replay

    def record(
        self,
        program: Any,
        args: Any,
        into: CaptureTarget,
        copies: Any = (),
    ) -> Any:
        self.on_record()
        graph = SimulatedGraph(self, program, args, into.pool, copies)
        self.records += 1
        self.live += 1
        self.tokens.append(into.pool)
        self.error_modes.append(into.error_mode)
        return graph, graph.recorded.pop()

    @property
    def captures(self) -> int:
        """Recordings made, without the one that only holds the pool."""
        return self.records - 1


class Body:
    """A Program around a function of separate arguments; clears its list, as boxed programs may."""

    kind, source = "eager", ""

    def __init__(self, function: Callable[..., Sequence[Any]]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        self.calls += 1
        mine = list(args)
        args.clear()
        return list(self.function(*mine))


ROLES = {role.value[0]: role for role in (Role.PLAIN, Role.MUTATED, Role.ALIAS, Role.SYMBOL, Role.OTHER)}
ROLES["w"] = Role.PARAMETER
NAME = "graph_t"


def make(
    function: Callable[..., Sequence[Any]],
    roles: str = "p",
    key: tuple[Any, ...] = (),
    *,
    row: Device | None = None,
    device: torch.device = CPU,
    random: bool = False,
    aliases: dict[int, list[int]] | None = None,
    repeats: dict[int, tuple[int, ...]] | None = None,
    **policy: Any,
) -> tuple[Runner, Any]:
    """A runner on a simulated device (or a real one); one letter per input: p m a s o, w for a weight. The
    key is numbers of scalar inputs, and pairs of a tensor input and a dim.
    """
    row = row or (SimulatedDevice() if device == CPU else get_device(device))
    inputs = InputInfo(
        names=tuple(f"arg{i}" for i in range(len(roles))),
        roles=tuple(ROLES[letter] for letter in roles),
        key=tuple(
            KeyPart(part) if isinstance(part, int) else KeyPart(part[0], "size", part[1]) for part in key
        ),
        aliases=aliases or {},
        random=random,
        repeats=repeats or {},
    )
    with installed(row):
        return capture(CompiledProgram(Body(function), inputs, Policy(**policy), device, NAME)), row
