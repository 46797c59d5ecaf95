"""The head of a device graph: copies that bring inputs to where the rest of the graph reads them.

A copy before every launch costs the host twice: the copy, and a launch onto a stream that is no longer idle.
A copy inside the graph costs nothing while its source stays where it is, and one call where it has moved.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

Copy = tuple[torch.Tensor, torch.Tensor]  # target and source; the same bytes in the same places

SETTER = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_size_t, ctypes.c_int)
"""`status = set(graph, node, target, source, bytes, kind)`."""

FORGET = ctypes.CFUNCTYPE(ctypes.c_int)
"""The last error of the runtime, forgotten: torch would find it behind its next kernel."""

DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice
MEMCPY_NODE = 1  # cudaGraphNodeTypeMemcpy
FEW = 4  # copies at most: the device makes them one after another; not measured where it pays no more


class Refused(RuntimeError):
    """The runtime does not let a graph copy its inputs, or not from there."""


class Head:
    """The copies of one graph, and how each is given another source."""

    def __init__(
        self,
        copies: Sequence[Copy],
        nodes: Sequence[int],
        *,
        graph: int,
        setter: int,
        kind: int,
        guard: Callable[[], AbstractContextManager[Any]],
        forget_error: int = 0,
    ) -> None:
        self.targets = [target for target, _ in copies]
        self.sources = array("Q", [source.data_ptr() for _, source in copies])  # where each copies from now
        self.nodes = list(nodes)
        self.graph = graph
        self.setter = setter
        self.kind = kind
        self.forget_error = forget_error  # address of a call to make after one that failed; 0 for none
        self._set = SETTER(setter)
        self._guard = guard

    def point(self, sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy from these from now on. What it returns must stay until the graph was launched."""
        kept: list[torch.Tensor] = []
        for at, (source, target) in enumerate(zip(sources, self.targets, strict=True)):
            if not is_bytes(source, target):
                source = torch.empty_like(target).copy_(source, non_blocking=True)
                kept.append(source)
            if source.data_ptr() != self.sources[at]:
                self._point(at, source.data_ptr())
        return kept

    def _point(self, at: int, address: int) -> None:
        target = self.targets[at]
        with self._guard():
            status = self._set(
                self.graph, self.nodes[at], target.data_ptr(), address, target.nbytes, self.kind
            )
        if status != 0:
            if self.forget_error:
                FORGET(self.forget_error)()
            raise Refused(f"status {status} for another source of a copy")
        self.sources[at] = address


def is_bytes(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Is copying no more than moving bytes?"""
    return (
        source.dtype == target.dtype
        and source.device == target.device
        and source.shape == target.shape
        and (source.stride() == target.stride() or (source.is_contiguous() and target.is_contiguous()))
        and not source.is_conj()
        and not source.is_neg()
    )


class Runtime:
    """What of the CUDA runtime it takes. Its calls are found in this process, where torch has loaded them."""

    CALLS = (
        "cudaMemcpyAsync",
        "cudaGraphGetNodes",
        "cudaGraphNodeGetType",
        "cudaGraphMemcpyNodeGetParams",
        "cudaGraphExecMemcpyNodeSetParams1D",
        "cudaGetLastError",
    )

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._calls = {name: getattr(library, name, None) for name in self.CALLS}

    def is_complete(self) -> bool:
        return None not in self._calls.values()

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: int) -> None:
        """Move the bytes of one tensor into another."""
        self._call(
            "cudaMemcpyAsync",
            _pointer(target.data_ptr()),
            _pointer(source.data_ptr()),
            ctypes.c_size_t(target.nbytes),
            DEVICE_TO_DEVICE,
            _pointer(stream),
        )

    def head(self, graph: Any, copies: Sequence[Copy], guard: Callable[[], Any]) -> Head:
        """Find these copies among the nodes of an instantiated `torch.cuda.CUDAGraph`."""
        found = self._memcpy_nodes(graph.raw_cuda_graph())
        nodes = [found.get(target.data_ptr(), 0) for target, _ in copies]
        if not all(nodes):
            raise Refused("a copy is not among the nodes of its graph")
        return Head(
            copies,
            nodes,
            graph=graph.raw_cuda_graph_exec(),
            setter=self._address("cudaGraphExecMemcpyNodeSetParams1D"),
            kind=DEVICE_TO_DEVICE,
            guard=guard,
            forget_error=self._address("cudaGetLastError"),
        )

    def _address(self, name: str) -> int:
        return ctypes.cast(self._calls[name], ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def launcher(self, graph: Any) -> Callable[[], None]:
        """The launch, without the Python that torch wraps around it."""
        return super(type(graph), graph).replay  # type: ignore[misc]

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
        assert call is not None, "asked for `is_complete` before"
        status = call(*args)
        if status:
            self._calls["cudaGetLastError"]()  # type: ignore[misc]
            raise Refused(f"{name}: status {status}")


_pointer = ctypes.c_void_p


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
