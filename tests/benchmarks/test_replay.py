"""The suite that needs no GPU: calls reach an empty graph, and the quick way serves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import replay
from benchmarks.options import Options
from torchair.devices import get_device


@pytest.mark.filterwarnings("ignore:frozen_parameter")  # one column asks for it
def test_calls_are_replays_of_an_empty_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Any] = []
    monkeypatch.setattr(replay.EmptyGraph, "replay", staticmethod(lambda: launches.append(1)))
    own = get_device(torch.device("cpu"))
    options = Options(rounds=2, sample_seconds=0.001, models=["one-op"])
    suite = replay.run(options)
    assert set(suite.figures["one-op"]) == {
        name + way for name in replay.COLUMNS for way in ("", replay.DIRECT)
    }
    assert all(seconds > 0 for seconds in suite.figures["one-op"].values())
    assert len(launches) > 10
    assert get_device(torch.device("cpu")) is own, "the CPU is itself again"
