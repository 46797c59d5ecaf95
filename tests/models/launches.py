"""How many launches a call takes, and how many of its kernels run inside replays: asked of the profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Launches:
    """Of one call: replays of recordings, kernels, and those of them that a replay ran."""

    replays: int
    kernels: int
    inside: int

    @property
    def share(self) -> float:
        """The part of the kernels that ran inside replays."""
        return self.inside / self.kernels if self.kernels else 1.0


def launches(call: Callable[[], Any]) -> Launches:
    """Profile one call on CUDA."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return of_trace(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def of_trace(events: list[dict[str, Any]]) -> Launches:
    """A kernel has the correlation of the call that launched it."""
    replays = [event for event in events if event.get("name") == "cudaGraphLaunch"]
    from_replays = {event["args"]["correlation"] for event in replays}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    inside = [event for event in kernels if event["args"]["correlation"] in from_replays]
    return Launches(len(replays), len(kernels), len(inside))
