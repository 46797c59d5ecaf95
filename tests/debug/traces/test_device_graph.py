"""Task traces of recordings: when they are written, where, and how the option finds its way to the check."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.debug.traces.test_deadlock import Trace
from tests.support.simulated_device import CPU, SimulatedDevice, SimulatedGraph
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.configs import npugraph_ex
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import DegradedWarning
from torchair.core.log import logger
from torchair.debug.observer import debug_dir
from torchair.debug.traces.device_graph import TraceFiles
from torchair.devices import Device, cpu, cuda, get_device, installed, npu

RISKY = Trace().talk(1, "aiv_a").talk(2, "aiv_b").events


class TracingDevice(SimulatedDevice):
    """A simulated device whose graphs write a trace, as those of the NPU do."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = True

    def vector_cores(self, device: torch.device) -> int:
        return 48

    def record(self, *args: Any) -> Any:
        graph, outputs = super().record(*args)
        graph.debug_dump = lambda path: Path(path).write_text(json.dumps(RISKY))
        return graph, outputs


@pytest.fixture
def loud() -> Iterator[None]:
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(logging.ERROR)


def call_three_times(row: Device, **options: Any) -> None:
    function = torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)
    with installed(row):
        for _ in range(3):
            torch.testing.assert_close(function(torch.ones(2)), torch.full((2,), 2.0))


def test_every_recording_is_written_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    row = TracingDevice()
    call_three_times(row, deadlock_check=True)
    assert row.captures == 1
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    stem = names[0].removesuffix(".json")
    assert re.fullmatch(r"graph_\d+_id_0_rank_0_pid_\d+_ts_\d{20}", stem)
    assert names[1:] == [f"{stem}_filtered.json", f"{stem}_filtered_deadlock_check.json"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    assert "pairs of tasks that may starve each other: 1" in capsys.readouterr().out


def test_the_debug_folder_keeps_traces_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debug_dir, "is_debugging", lambda: True)
    monkeypatch.setattr(debug_dir, "_log_into", lambda path: None)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path)):
        call_three_times(TracingDevice())
    (path,) = tmp_path.rglob("*.json")
    assert path.parent.name == "model__0"
    assert json.loads(path.read_text()) == RISKY
    assert "starve" not in capsys.readouterr().out


def test_without_the_option_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call_three_times(TracingDevice())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "cpu writes no traces of recorded graphs"),
        ({"force_eager": True}, "nothing is recorded beside force_eager and dumps that run op by op"),
    ],
)
def test_deadlock_check_without_traces_warns_once(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(DegradedWarning) as said:
        call_three_times(get_device(CPU), deadlock_check=True, **options)
    assert [str(one.message) for one in said] == [f"deadlock_check has nothing to analyse: {reason}"]


def test_the_older_name() -> None:
    config = torchair.CompilerConfig()
    config.debug.deadlock_check = True
    assert resolve_settings(config).checks_deadlocks
    run = torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config))
    with pytest.warns(DegradedWarning, match="deadlock_check has nothing to analyse: cpu writes no traces"):
        run(torch.ones(2))


def test_a_graph_that_cannot_be_written_is_recorded_all_the_same(
    tmp_path: Path,
) -> None:
    class Broken(SimulatedGraph):
        def debug_dump(self, path: str) -> None:
            raise OSError("disk full")

    files = TraceFiles("graph_7", CPU, tmp_path, Diagnostics(), checks=True)
    with pytest.warns(
        DegradedWarning, match="cannot write the trace of a recording or check it for deadlocks: .*disk full"
    ):
        files.recorded(Broken.__new__(Broken))


def test_npu_device_declares_traces() -> None:
    assert [module.DEVICE.traces for module in (cpu, cuda, npu)] == [False, False, True]


def test_statistics_reach_the_runner() -> None:
    config = npugraph_ex.CompilerConfig()
    config.record_statistics_debug_info = True
    gm = torch.fx.symbolic_trace(lambda x: [torch.ops.aten.sin.default(x)])
    with pytest.warns(DegradedWarning, match="was not at level DEBUG"):
        assert compile_fx(gm, [torch.ones(2)], resolve_settings(config)).strategy.policy.statistics
