"""Models of `transformers` on the simulated device: equal to the CPU, and recorded whole."""

from __future__ import annotations

import pytest
import torch

from tests.models.zoo import ROWS, Row, leaves
from tests.sim.inside.test_compiled import MODES
from tests.support.compile import compile_fn, watching
from tests.support.slow import slow

QUICK = ("llama",)  # `test_sweep` has others


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "row", [row if row.name in QUICK else slow(row) for row in ROWS], ids=lambda r: r.name
)
def test_equal_and_recorded(row: Row, mode: str) -> None:
    here, there = row.model(), row.model().npu()
    shape = row.shapes[0]
    with watching() as seen, torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        want = leaves(here(**row.feed(shape)))
        run = compile_fn(there, mode=mode, dynamic=False)
        for _ in range(3):
            got = leaves(run(**row.feed(shape, "npu")))
            assert {leaf.device.type for leaf in got} == {"npu"}
            torch.testing.assert_close([leaf.cpu() for leaf in got], want, rtol=1e-3, atol=1e-4)
    for runner in seen.runners:
        report = runner.report()
        assert sum(each.replays for each in report.recordings) >= 2, (runner.why_not, report)
