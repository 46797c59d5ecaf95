"""`fusion_result.json`: when it is written, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn, seen_with
from tests.support.process import python
from tests.support.slow import slow
from torchair.core.errors import DegradedWarning
from torchair.debug.dumps import fusion_stats
from torchair.debug.dumps.fusion_stats import FILE

STAT = "ge_config.export_compile_stat"
LEFT, RIGHT = torch.randn(3, 4, 128), torch.randn(3, 128, 256)
NARROW = torch.randn(3, 4, 64)

SCRIPT = """
import os, sys, torch, torchair
when = sys.argv[1]
config = torchair.CompilerConfig()
config.engine_config.codegen = "eager"
if when != "unset":
    config.ge_config.export_compile_stat = when
backend = torchair.get_npu_backend(compiler_config=config)
torch.compile(torch.sin, backend=backend)(torch.ones(3))
torch.compile(torch.cos, backend=backend)(torch.ones(3))
print(os.path.exists("fusion_result.json"))
"""


@pytest.mark.parametrize(
    ("when", "after_compile", "at_exit"),
    [slow("unset", False, False), slow("0", False, False), ("1", False, True), slow("2", True, True)],
)
def test_when_it_is_written(when: str, after_compile: bool, at_exit: bool, tmp_path: Path) -> None:
    done = python(["-c", SCRIPT, when], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(after_compile)
    assert [file.name for file in tmp_path.iterdir()] == [FILE] * at_exit
    if at_exit:
        found = json.loads((tmp_path / FILE).read_text())
        assert list(found) == ["session_and_graph_id_0_1", "session_and_graph_id_0_2"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the file says of the last graph."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fusion_stats.FUSION_RESULTS, "_graphs", {})
    return lambda: list(json.loads((tmp_path / FILE).read_text()).values())[-1]


def test_fusions_and_passes_are_counted(written: Any) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fused = torch.bmm(a, b).transpose(0, 1) + 1
        found = torch.bmm(c, b[:, :64]).transpose(0, 1) + 1  # 64 is no width that the rule takes
        return fused, found, a[0].t() @ a[0]

    seen_with({STAT: "2"}, fn, LEFT, RIGHT, NARROW)
    assert written()["ub_fusion"] == {}
    found = written()["graph_fusion"]
    assert found["bmm_transpose"] == {"match_times": "2", "effect_times": "1"}
    assert found["apply_pattern_passes"]["effect_times"] == "1"
    assert found["move_transpose_into_mm"] == {"match_times": "1", "effect_times": "1"}
    assert found["optimize_sym_pack"] == {"match_times": "0", "effect_times": "0"}


def test_what_is_switched_off_matches_without_effect(written: Any) -> None:
    options = {STAT: "2", "ge_config.optimization_switch": "bmm_transpose:off;move_transpose_into_mm:off"}
    seen_with(options, lambda a, b: torch.bmm(a, b).transpose(0, 1) + 1, LEFT, RIGHT)
    found = written()["graph_fusion"]
    assert found["bmm_transpose"] == {"match_times": "1", "effect_times": "0"}
    assert "move_transpose_into_mm" not in found


def test_fusion_result_write_failure_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(DegradedWarning, match="cannot write .*fusion_result.json: NotPossible"):
        assert compile_fn(torch.sin, {STAT: "2"})(torch.zeros(3)).tolist() == [0.0] * 3
    assert not (tmp_path / "elsewhere").exists()


def test_capture_mode_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(torchair.DegradedWarning, match="npugraph_ex mode does not read it"):
        compile_fn(torch.sin, {STAT: "1"}, "npugraph_ex")(torch.zeros(3))
    assert list(tmp_path.iterdir()) == []
