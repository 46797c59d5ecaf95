"""The scaling benchmark runs, and what is costly in lowering does not grow with the number of layers."""

from __future__ import annotations

import pytest

from benchmarks import scaling
from tests.support.slow import STATIC_FIRST
from torchair.engine import lower as lowering


@STATIC_FIRST
def test_more_layers_are_not_more_traces(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[str] = []
    trace = lowering._trace
    monkeypatch.setattr(lowering, "_trace", lambda state, op: traces.append(op.type) or trace(state, op))
    few, _ = scaling.stages(150, dynamic)
    first = len(traces)
    traces.clear()
    many, figures = scaling.stages(450, dynamic)
    assert many > 2 * few
    assert len(traces) == first
    assert set(figures) == set(scaling.STAGES)
    assert all(seconds > 0 for seconds in figures.values())


def test_scaling_benchmark_reports_exceeded_bounds() -> None:
    small, large = "1000 nodes, constant sizes", "10000 nodes, constant sizes"
    assert not scaling.why_slow(large, 6.0, {small: 8e-4, large: 6e-4})
    assert "the bound is 20 s" in scaling.why_slow(large, 21.0, {small: 2e-3, large: 2.1e-3})[0]
    assert "2000 µs a node, 1000 µs" in scaling.why_slow(large, 2.0, {small: 1e-3, large: 2e-3})[0]
