"""Every family of `transformers` as a tiny random model on the simulated device: eager's numbers of the host,
and graphs that are recorded and replayed. Where not all of that can be, a table says why.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.models.families import FAMILIES, Tiny, tiny
from tests.models.sweep import (
    CALLS,
    EQUAL,
    LIMIT_S,
    MODES,
    backend,
    check_close,
    compare,
    eager,
    on,
    time_limit,
)
from tests.support.compile import watching
from tests.support.slow import slow
from torchair.capture.base.stats import Report

# A vision and a language model, which record in a few seconds.
QUICK = ("beit", "biogpt")
REPLAYS = CALLS["npu"] - 1  # the first call records
SPLIT_CALLS = 24
# The device draws other numbers than the host: these have the numbers of eager on the device.
DRAWN = {"vit_mae": "which patches are masked"}
_GROUPED = "grouped_mm asks how many rows each group has"
# One graph that is recorded in pieces, because an op between them needs the host. There are up to
# five of them, and each is recorded some calls after the one before it.
SPLIT = dict.fromkeys(
    (
        "cohere2_moe", "deepseek_v2", "deepseek_v3", "ernie4_5_moe", "exaone_moe", "flex_olmo", "gpt_oss",
        "granitemoehybrid", "granitemoeshared", "hy_v3", "kimi_linear", "minimax", "nemotron_h",
    ),
    _GROUPED,
)  # fmt: skip


@dataclass(frozen=True)
class Broken:
    """Dynamo breaks the graph, with stock backends too, and some of what it makes is not replayed."""

    why: str
    modes: tuple[str, ...] = MODES


BROKEN = {
    "higgs_audio_v2": Broken("tokens are chosen by masks, and written where they lie", ("max-autotune",)),
    "jetmoe": Broken("an expert's rows are counted on the host: a size that was met once is not replayed"),
    "longcat_flash": Broken("only experts that were chosen run: a size that was met once is not replayed"),
    "reformer": Broken("a graph between two breaks is on the host"),
}
# Loading hundreds of modules meets whatever their authors deprecate; the tables have what is degraded.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [family if family in QUICK else slow(family) for family in FAMILIES])
def test_equal_and_recorded(family: str, mode: str) -> None:
    with time_limit(LIMIT_S), watching() as seen:
        found = tiny(family)
        wanted = eager(found)
        found = on(found, "npu")
        if family in DRAWN:
            wanted = drawn_on_device(found, wanted)
        assert compare(found, wanted, backend(mode), calls=SPLIT_CALLS if family in SPLIT else 0) == EQUAL
    reports = [runner.report() for runner in seen.runners]
    assert any(is_replayed(report) for report in reports), reports
    missed = [report for report in reports if not is_replayed(report)]
    is_missed = family in BROKEN and mode in BROKEN[family].modes
    assert bool(missed) == is_missed, [str(report) for report in missed] or "all is replayed by now"
    assert any(len(report.parts) > 1 for report in reports) == (family in SPLIT), reports


def drawn_on_device(found: Tiny, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """Eager's tensors on the device, which must be others than those of the host."""
    drawn = eager(found)
    with pytest.raises(AssertionError, match="not close"):
        check_close(drawn, wanted, "npu")
    return drawn


def is_replayed(report: Report) -> bool:
    """Every call but those that recorded it; of a graph in pieces, each of them."""
    if report.parts:
        return all(is_replayed(part) for part in report.parts)
    return sum(recording.replays for recording in report.recordings) >= REPLAYS


@pytest.mark.full
@pytest.mark.parametrize("family", BROKEN)
def test_stock_torch_breaks_it_too(family: str) -> None:
    found = tiny(family)
    with torch.no_grad():
        assert torch._dynamo.explain(found.model)(**found.inputs).graph_break_count


def test_tables_are_of_families() -> None:
    assert {*QUICK, *DRAWN, *SPLIT, *BROKEN} <= set(FAMILIES)
    assert not set(SPLIT) & set(BROKEN)
