"""Input-copy nodes of a device graph: copies that move inputs to where the rest of the graph reads them.

A copy before every launch costs the host twice: the copy, and a launch onto a stream that is no longer idle.
A copy inside the graph costs nothing while its source stays, and one call if it has moved.
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
"""`status = set(graph, node, target, source, bytes, kind)`. It is short and holds the GIL: threads that wait
for the launch lock must not wait until this thread gets the GIL again.
"""

FORGET = ctypes.PYFUNCTYPE(ctypes.c_int)
"""Clears the last error of the runtime. Otherwise torch would report it after its next kernel."""

FEW = 4  # maximum number of copies, which run one after another; the break-even point was not measured


class GraphUpdateRejected(RuntimeError):
    """The runtime rejects a graph that copies its inputs, or a new source of a copy."""


@dataclass(frozen=True)
class Calls:
    """How a runtime changes the source of a copy in a graph."""

    setter: int
    """Address of the `SETTER` function."""
    kind: int
    """The `kind` of copies on the device."""
    guard: Callable[[], AbstractContextManager[Any]]
    """Makes the device of the graph the current device."""
    forget_error: int = 0
    """Address of the `FORGET` function; 0 for none."""


class InputCopyNodes:
    """The copies of one graph, and the calls that change their sources."""

    def __init__(self, copies: Sequence[Copy], nodes: Sequence[int], graph: int, calls: Calls) -> None:
        self.targets = [target for target, _ in copies]
        # Current source address of each copy.
        self.sources = array("Q", [source.data_ptr() for _, source in copies])
        self.nodes = list(nodes)
        self.graph = graph
        self.setter, self.kind, self.forget_error = calls.setter, calls.kind, calls.forget_error
        self._set = SETTER(calls.setter)
        self._guard = calls.guard

    def point(self, sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Set the sources of the copies. The caller must keep the result until the graph was launched."""
        kept: list[torch.Tensor] = []
        for at, (source, target) in enumerate(zip(sources, self.targets, strict=True)):
            if not is_bytes(source, target):
                source = torch.empty_like(target).copy_(source, non_blocking=True)
                kept.append(source)
            if source.data_ptr() != self.sources[at]:
                self._point(at, source.data_ptr())
        return kept

    def may_point(self, sources: Sequence[torch.Tensor]) -> bool:
        """Set the sources of the copies if only addresses change; return whether that was possible."""
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
            raise GraphUpdateRejected(f"changing the source of a copy failed with status {status}")
        self.sources[at] = address


def is_bytes(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether the copy moves bytes only, without conversion."""
    return (
        source.dtype == target.dtype
        and source.device == target.device
        and source.shape == target.shape
        and (source.stride() == target.stride() or (source.is_contiguous() and target.is_contiguous()))
        and not source.is_conj()
        and not source.is_neg()
    )
