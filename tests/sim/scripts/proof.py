"""What scripts assert about themselves: graphs were compiled and replayed, and numbers are right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.utils import counters

_replays = [0]
_plain = torch.npu.NPUGraph.replay


def _counted(graph: Any) -> None:
    _replays[0] += 1
    _plain(graph)


torch.npu.NPUGraph.replay = _counted


@contextlib.contextmanager
def replayed(at_least: int = 1) -> Iterator[None]:
    """What happens inside replays graphs."""
    before = _replays[0]
    yield
    assert _replays[0] - before >= at_least, (
        f"{_replays[0] - before} replays, at least {at_least} were expected"
    )


@contextlib.contextmanager
def compiled(graphs: int = 1, breaks: int = 0) -> Iterator[None]:
    """What happens inside gives Dynamo so many graphs."""
    made, broken = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    yield
    made = counters["stats"]["unique_graphs"] - made
    assert made == graphs, f"{made} graphs were compiled, {graphs} were expected"
    broken = sum(counters["graph_break"].values()) - broken
    assert broken == breaks, f"{broken} graph breaks, {breaks} were expected"


def close(got: Any, want: Any, **tolerance: float) -> None:
    """Results of the device and of the CPU are the same."""
    assert got.device.type == "npu", got.device
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **tolerance)
