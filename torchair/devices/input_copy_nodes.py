"""The head of a device graph: copies that bring inputs to where the rest of the graph reads them.

A copy before every launch costs the host twice: the copy, and a launch onto a stream that is no longer idle.
A copy inside the graph costs nothing while its source stays where it is, and one call where it has moved.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

Copy = tuple[torch.Tensor, torch.Tensor]  # target and source; the same bytes in the same places

SETTER = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_size_t, ctypes.c_int)
"""`status = set(graph, node, target, source, bytes, kind)`. It is short, and keeps the interpreter's lock:
threads that wait for their turn must not wait until this one has the interpreter again.
"""

FORGET = ctypes.PYFUNCTYPE(ctypes.c_int)
"""The last error of the runtime, forgotten: torch would find it behind its next kernel."""

FEW = 4  # copies at most: the device makes them one after another; not measured where it pays no more


class GraphUpdateRejected(RuntimeError):
    """The runtime does not let a graph copy its inputs, or not from there."""


@dataclass(frozen=True)
class Calls:
    """How a runtime gives a copy in a graph another source."""

    setter: int
    """The address of its `SETTER`."""
    kind: int
    """What that takes for a copy on the device."""
    guard: Callable[[], AbstractContextManager[Any]]
    """Makes the device of the graph the current one."""
    forget_error: int = 0
    """The address of its `FORGET`; 0 for none."""


class InputCopyNodes:
    """The copies of one graph, and how each is given another source."""

    def __init__(self, copies: Sequence[Copy], nodes: Sequence[int], graph: int, calls: Calls) -> None:
        self.targets = [target for target, _ in copies]
        self.sources = array("Q", [source.data_ptr() for _, source in copies])  # where each copies from now
        self.nodes = list(nodes)
        self.graph = graph
        self.setter, self.kind, self.forget_error = calls.setter, calls.kind, calls.forget_error
        self._set = SETTER(calls.setter)
        self._guard = calls.guard

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

    def may_point(self, sources: Sequence[torch.Tensor]) -> bool:
        """Copy from these from now on, if that takes no more than saying so."""
        if not all(map(is_bytes, sources, self.targets)):
            return False
        try:
            self.point(sources)
        except GraphUpdateRejected:
            return False
        return True

    def _point(self, at: int, address: int) -> None:
        target = self.targets[at]
        with self._guard():
            status = self._set(
                self.graph, self.nodes[at], target.data_ptr(), address, target.nbytes, self.kind
            )
        if status != 0:
            if self.forget_error:
                FORGET(self.forget_error)()
            raise GraphUpdateRejected(f"status {status} for another source of a copy")
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
