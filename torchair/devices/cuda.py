"""CUDA: graphs that copy their inputs themselves, and kernels that Inductor tries out."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from torchair.core.errors import first_line
from torchair.core.log import capture_logger as logger
from torchair.core.native.fast_replay import DirectLaunch
from torchair.core.program import Call
from torchair.devices import green_context
from torchair.devices.base import CaptureTarget, Graph, HostCall
from torchair.devices.graph_device import GraphDevice
from torchair.devices.input_copy_nodes import Calls, Copy, GraphUpdateRejected, InputCopyNodes

DEVICE_TO_HOST, DEVICE_TO_DEVICE = 2, 3  # cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice
RELAXED = 2  # cudaStreamCaptureModeRelaxed
MEMCPY_NODE = 1  # cudaGraphNodeTypeMemcpy
ON_DEVICE = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged
HostCallOfGraph = tuple[Any, Sequence[torch.Tensor]]
"""A function for the driver, and what it is called with."""


class Cuda(GraphDevice):
    """NVIDIA's."""

    graph = "CUDAGraph"
    # Reductions that do not depend on each other (query, key and value of one vector) are one launch. Four
    # Llama-3-8B layers and the head, one step on an H200: 717 us, with a search for block sizes; 749 us
    # without this, 842 us without the search, 850 us with a library's products.
    tuned = {
        "combo_kernels": True,
        "combo_kernel_allow_mixed_sizes": 2,
        "combo_kernel_per_subkernel_blocks": True,
    }

    # A recording saves the host's time in any case, so nothing is gained by a library.
    ways = (
        ("inductor", {}),
        ("inductor", {"max_autotune": True, "coordinate_descent_tuning": True}),
        ("eager", {}),
    )

    def __init__(self, type: str) -> None:
        super().__init__(type)
        # Graphs have addresses of what the host is called with. Those of graphs that others record stay
        # for the life of the process, others until their graph is gone and the device has been waited for.
        self._host_calls: list[HostCallOfGraph] = []
        self._gone: list[tuple[torch.device, HostCallOfGraph]] = []
        self._under_way = threading.local()
        self._errors: list[BaseException] = []  # of host calls, not told yet
        self._waits_at_exit = False

    @property
    def limits_cores(self) -> bool:  # type: ignore[override]
        return green_context.is_possible()

    def codegen(self, *, captures: bool) -> str:
        return "eager" if captures else "inductor"

    def has_fresh_random(self) -> bool:
        return True

    @cached_property
    def runtime(self) -> Runtime | None:
        """What it takes to copy inputs inside a graph; None where that cannot be done."""
        found = Runtime()
        return found if found.is_complete() else None

    def device_at(self, address: int) -> torch.device | None:
        if not self.module.is_available():
            return None
        self.module.init()
        return Runtime().device_at(address)

    @property
    def copies_inside(self) -> bool:  # type: ignore[override]
        return self.runtime is not None

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: int) -> None:
        assert self.runtime is not None, "without it nothing is copied inside a graph"
        self.runtime.copy(target, source, stream)

    def head(self, graph: Any, copies: Sequence[Copy], device: torch.device) -> InputCopyNodes:
        assert self.runtime is not None, "it recorded them"
        return self.runtime.head(graph, copies, lambda: self.module.device(device))

    def launcher(self, graph: Any) -> Callable[[], None]:
        """The launch, without the Python that torch wraps around it."""
        launch = super(type(graph), graph).replay  # type: ignore[misc]
        if not getattr(graph, "calls_host", False):
            return launch

        def told() -> None:
            if self._errors:
                raise self._errors.pop(0)  # the device cannot: it went on
            launch()

        return told

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch | None:
        """None for a graph that calls the host, too: a launch that waits for room behind such calls must let
        go of the interpreter's lock, which they take.
        """
        calls_host = getattr(graph, "calls_host", False)
        return None if self.runtime is None or calls_host else self.runtime.direct_launch(graph, device)

    @property
    def calls_host(self) -> bool:  # type: ignore[override]
        return self.runtime is not None and self.runtime.calls_host

    def call_on_host(self, tensors: Sequence[torch.Tensor], act: HostCall) -> None:
        assert self.runtime is not None, "asked in `calls_host`"
        if not self._waits_at_exit:
            self._waits_at_exit = True
            atexit.register(self.module.synchronize)  # while there is an interpreter to call
        stream = self.module.current_stream().cuda_stream
        given = [self._copy_out(x, stream) for x in tensors]

        def on_host(_: int) -> None:
            try:
                # Plain memory: the values of the next replay may be copied in while somebody keeps these.
                act([x.clone() for x in given])
            except Exception as error:
                logger.error("a print or a save of a replay failed: %s", first_line(error))
                self._errors.append(error)

        call = HOST_FUNCTION(on_host)
        getattr(self._under_way, "calls", self._host_calls).append((call, given))
        self.runtime.call_on_host(call, stream)

    def _copy_out(self, x: torch.Tensor, stream: int) -> torch.Tensor:
        if x.device.type != self.type:
            return x
        assert self.runtime is not None, "asked in `calls_host`"
        x = x.contiguous()
        with self.runtime.relaxed():
            copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        if copy.numel():
            self.runtime.copy(copy, x, stream, DEVICE_TO_HOST)
        return copy

    def record(
        self, program: Call, args: list[Any], into: CaptureTarget, copies: Sequence[Copy] = ()
    ) -> tuple[Graph, list[Any]]:
        device = into.device
        if self._gone:
            self.synchronize(device)
            self._gone[:] = [row for row in self._gone if row[0] != device]
        self._under_way.calls = calls = list[HostCallOfGraph]()
        try:
            graph, outputs = super().record(program, args, into, copies)
        finally:
            del self._under_way.calls
        graph.calls_host = bool(calls)  # type: ignore[attr-defined]
        if calls:
            weakref.finalize(graph, self._gone.extend, [(device, call) for call in calls])
        return graph, outputs


class Runtime:
    """Calls of the CUDA runtime, found in this process, where torch has loaded them."""

    CALLS = (
        "cudaMemcpyAsync",
        "cudaGraphGetNodes",
        "cudaGraphNodeGetType",
        "cudaGraphMemcpyNodeGetParams",
        "cudaGraphExecMemcpyNodeSetParams1D",
        "cudaGraphLaunch",
        "cudaGetLastError",
    )
    WHOSE = "cudaPointerGetAttributes"
    HOST, MODE = "cudaLaunchHostFunc", "cudaThreadExchangeStreamCaptureMode"

    def __init__(self) -> None:
        library = ctypes.PyDLL(
            None
        )  # short calls, which keep the interpreter's lock (see `input_copy_nodes.py`)
        names = (*self.CALLS, self.WHOSE, self.HOST, self.MODE)
        self._calls = {name: getattr(library, name, None) for name in names}

    def is_complete(self) -> bool:
        return all(self._calls[name] is not None for name in self.CALLS)

    @property
    def calls_host(self) -> bool:
        return None not in (self._calls[self.HOST], self._calls[self.MODE])

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """While a graph is recorded, this thread may take memory from the system inside."""
        mode = ctypes.c_int(RELAXED)
        self._call(self.MODE, ctypes.byref(mode))
        try:
            yield
        finally:
            self._call(self.MODE, ctypes.byref(mode))

    def call_on_host(self, function: Any, stream: int) -> None:
        """A function of the host, at this point of a stream."""
        self._call(self.HOST, _pointer(stream), function, None)

    def device_at(self, address: int) -> torch.device | None:
        """The device whose memory lies there; None for memory of the host, and for what is no memory."""
        found = _Pointer()
        try:
            self._call(self.WHOSE, ctypes.byref(found), _pointer(address))
        except GraphUpdateRejected:
            return None
        return torch.device("cuda", found.device) if found.kind in ON_DEVICE else None

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, stream: int, kind: int = DEVICE_TO_DEVICE
    ) -> None:
        """Move the bytes of one tensor into another."""
        self._call(
            "cudaMemcpyAsync",
            _pointer(target.data_ptr()),
            _pointer(source.data_ptr()),
            ctypes.c_size_t(target.nbytes),
            kind,
            _pointer(stream),
        )

    def head(self, graph: Any, copies: Sequence[Copy], guard: Callable[[], Any]) -> InputCopyNodes:
        """Find these copies among the nodes of an instantiated `torch.cuda.CUDAGraph`."""
        found = self._memcpy_nodes(graph.raw_cuda_graph())
        nodes = [found.get(target.data_ptr(), 0) for target, _ in copies]
        if not all(nodes):
            raise GraphUpdateRejected("a copy is not among the nodes of its graph")
        setter, forget = map(self._address, ("cudaGraphExecMemcpyNodeSetParams1D", "cudaGetLastError"))
        calls = Calls(setter, DEVICE_TO_DEVICE, guard, forget)
        return InputCopyNodes(copies, nodes, graph.raw_cuda_graph_exec(), calls)

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch:
        launch, forget = map(self._address, ("cudaGraphLaunch", "cudaGetLastError"))
        return DirectLaunch(launch, graph.raw_cuda_graph_exec(), device, forget)

    def _address(self, name: str) -> int:
        return ctypes.cast(self._calls[name], ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def _memcpy_nodes(self, graph: int) -> dict[int, int]:
        """Target -> the first node that copies there."""
        count = ctypes.c_size_t()
        self._call("cudaGraphGetNodes", _pointer(graph), None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self._call("cudaGraphGetNodes", _pointer(graph), nodes, ctypes.byref(count))
        found: dict[int, int] = {}
        kind, params = ctypes.c_int(), _CopyParams()
        for node in nodes:
            self._call("cudaGraphNodeGetType", _pointer(node), ctypes.byref(kind))
            if kind.value == MEMCPY_NODE:
                self._call("cudaGraphMemcpyNodeGetParams", _pointer(node), ctypes.byref(params))
                found.setdefault(params.target.pointer, node)
        return found

    def _call(self, name: str, *args: Any) -> None:
        call = self._calls[name]
        if call is None:
            raise GraphUpdateRejected(f"{name} is not in this process")
        status = call(*args)
        if status:
            self._calls["cudaGetLastError"]()  # type: ignore[misc]
            raise GraphUpdateRejected(f"{name}: status {status}")


_pointer = ctypes.c_void_p
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # takes the interpreter's lock while it runs


class _Pointer(ctypes.Structure):
    """cudaPointerAttributes."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("on_device", ctypes.c_void_p),
        ("on_host", ctypes.c_void_p),
        ("reserved", ctypes.c_long * 8),  # of newer versions
    ]


class _Place(ctypes.Structure):
    """cudaPos and cudaExtent."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("x", "y", "z")]


class _Pitched(ctypes.Structure):
    """cudaPitchedPtr."""

    _fields_ = [("pointer", ctypes.c_void_p), *((n, ctypes.c_size_t) for n in ("pitch", "xsize", "ysize"))]


class _CopyParams(ctypes.Structure):
    """cudaMemcpy3DParms."""

    _fields_ = [
        ("source_array", ctypes.c_void_p),
        ("source_place", _Place),
        ("source", _Pitched),
        ("target_array", ctypes.c_void_p),
        ("target_place", _Place),
        ("target", _Pitched),
        ("extent", _Place),
        ("kind", ctypes.c_int),
    ]


DEVICE = Cuda("cuda")
