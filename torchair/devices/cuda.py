"""CUDA: graphs that copy their own inputs, and autotuned kernels."""

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
"""A function for the driver, and the tensors it is called with."""


class Cuda(GraphDevice):
    """NVIDIA GPUs."""

    graph = "CUDAGraph"
    # Independent reductions (query, key and value of one vector) are one launch. Four Llama-3-8B layers and
    # the head, one step on an H200: 717 us, with a search for block sizes; 749 us without this, 842 us
    # without the search, 850 us with a library's products.
    tuned = {
        "combo_kernels": True,
        "combo_kernel_allow_mixed_sizes": 2,
        "combo_kernel_per_subkernel_blocks": True,
    }

    # Recordings save host time already, so a library gains nothing.
    ways = (
        ("inductor", {}),
        ("inductor", {"max_autotune": True, "coordinate_descent_tuning": True}),
        ("eager", {}),
    )

    def __init__(self, type: str) -> None:
        super().__init__(type)
        # Graphs contain the addresses of host functions and their arguments. Those of graphs recorded
        # elsewhere stay alive for the whole process, others until their graph is freed and the device was
        # synchronized.
        self._host_calls: list[HostCallOfGraph] = []
        self._freed_calls: list[tuple[torch.device, HostCallOfGraph]] = []
        self._recording = threading.local()
        self._errors: list[BaseException] = []  # of host calls, not raised yet
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
        """The CUDA runtime, or None if it lacks the calls to copy inputs inside a graph."""
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
        assert self.runtime is not None, "copies inside a graph need the runtime"
        self.runtime.copy(target, source, stream)

    def head(self, graph: Any, copies: Sequence[Copy], device: torch.device) -> InputCopyNodes:
        assert self.runtime is not None, "the runtime recorded the copies"
        return self.runtime.head(graph, copies, lambda: self.module.device(device))

    def launcher(self, graph: Any) -> Callable[[], None]:
        """Return the launch function without torch's Python wrapper."""
        launch = super(type(graph), graph).replay  # type: ignore[misc]
        if not getattr(graph, "calls_host", False):
            return launch

        def launch_checked() -> None:
            if self._errors:
                raise self._errors.pop(0)  # the device could not raise it and continued
            launch()

        return launch_checked

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch | None:
        """Return None also for a graph that calls the host: a launch that waits for such calls must release
        the GIL, which they need.
        """
        calls_host = getattr(graph, "calls_host", False)
        return None if self.runtime is None or calls_host else self.runtime.direct_launch(graph, device)

    @property
    def calls_host(self) -> bool:  # type: ignore[override]
        return self.runtime is not None and self.runtime.calls_host

    def call_on_host(self, tensors: Sequence[torch.Tensor], act: HostCall) -> None:
        assert self.runtime is not None, "callers check `calls_host`"
        if not self._waits_at_exit:
            self._waits_at_exit = True
            atexit.register(self.module.synchronize)  # before the interpreter exits
        stream = self.module.current_stream().cuda_stream
        given = [self._copy_out(x, stream) for x in tensors]

        def on_host(_: int) -> None:
            try:
                # Clone: the next replay may overwrite these buffers while `act` keeps the values.
                act([x.clone() for x in given])
            except Exception as error:
                logger.error("printing or saving a tensor during a replay failed: %s", first_line(error))
                self._errors.append(error)

        call = HOST_FUNCTION(on_host)
        getattr(self._recording, "calls", self._host_calls).append((call, given))
        self.runtime.call_on_host(call, stream)

    def _copy_out(self, x: torch.Tensor, stream: int) -> torch.Tensor:
        if x.device.type != self.type:
            return x
        assert self.runtime is not None, "callers check `calls_host`"
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
        if self._freed_calls:
            self.synchronize(device)
            self._freed_calls[:] = [row for row in self._freed_calls if row[0] != device]
        self._recording.calls = calls = list[HostCallOfGraph]()
        try:
            graph, outputs = super().record(program, args, into, copies)
        finally:
            del self._recording.calls
        graph.calls_host = bool(calls)  # type: ignore[attr-defined]
        if calls:
            weakref.finalize(graph, self._freed_calls.extend, [(device, call) for call in calls])
        return graph, outputs


class Runtime:
    """Functions of the CUDA runtime that torch has loaded into this process."""

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
        library = ctypes.PyDLL(None)  # short calls, with the GIL held (see `input_copy_nodes.py`)
        names = (*self.CALLS, self.WHOSE, self.HOST, self.MODE)
        self._calls = {name: getattr(library, name, None) for name in names}

    def is_complete(self) -> bool:
        return all(self._calls[name] is not None for name in self.CALLS)

    @property
    def calls_host(self) -> bool:
        return None not in (self._calls[self.HOST], self._calls[self.MODE])

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread to allocate system memory while a graph is recorded."""
        mode = ctypes.c_int(RELAXED)
        self._call(self.MODE, ctypes.byref(mode))
        try:
            yield
        finally:
            self._call(self.MODE, ctypes.byref(mode))

    def call_on_host(self, function: Any, stream: int) -> None:
        """Call a function on the CPU at this point of a stream."""
        self._call(self.HOST, _pointer(stream), function, None)

    def device_at(self, address: int) -> torch.device | None:
        """Return the device that owns the address; None for host memory and for invalid addresses."""
        found = _Pointer()
        try:
            self._call(self.WHOSE, ctypes.byref(found), _pointer(address))
        except GraphUpdateRejected:
            return None
        return torch.device("cuda", found.device) if found.kind in ON_DEVICE else None

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, stream: int, kind: int = DEVICE_TO_DEVICE
    ) -> None:
        """Copy the bytes of one tensor into another."""
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
            raise GraphUpdateRejected("the graph has no node for one of its copies")
        setter, forget = map(self._address, ("cudaGraphExecMemcpyNodeSetParams1D", "cudaGetLastError"))
        calls = Calls(setter, DEVICE_TO_DEVICE, guard, forget)
        return InputCopyNodes(copies, nodes, graph.raw_cuda_graph_exec(), calls)

    def direct_launch(self, graph: Any, device: torch.device) -> DirectLaunch:
        launch, forget = map(self._address, ("cudaGraphLaunch", "cudaGetLastError"))
        return DirectLaunch(launch, graph.raw_cuda_graph_exec(), device, forget)

    def _address(self, name: str) -> int:
        return ctypes.cast(self._calls[name], ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def _memcpy_nodes(self, graph: int) -> dict[int, int]:
        """Map each target address to the first node that copies there."""
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
            raise GraphUpdateRejected(f"the CUDA runtime has no {name}")
        status = call(*args)
        if status:
            self._calls["cudaGetLastError"]()  # type: ignore[misc]
            raise GraphUpdateRejected(f"{name} failed with status {status}")


_pointer = ctypes.c_void_p
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # holds the GIL while it runs


class _Pointer(ctypes.Structure):
    """cudaPointerAttributes."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("on_device", ctypes.c_void_p),
        ("on_host", ctypes.c_void_p),
        ("reserved", ctypes.c_long * 8),  # used by newer versions
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
