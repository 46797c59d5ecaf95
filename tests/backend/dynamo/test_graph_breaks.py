"""Graph breaks by `BREAK_GRAPH_OP_LIST`: they are there, the results are the same, typos are told."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.process import python
from tests.support.slow import slow

SCRIPT = """
import sys
import torch
import torchair
from torchair.core.torch_private.compilers.aot_autograd import dynamo_counters

class Slices(torch.nn.Module):
    def forward(self, x): return (x + 1)[1:, ::2].relu() * 2
class Writes(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y[0] = 7
        return y + 1
class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def forward(self, x): return self.second(self.first(x).relu()) + 1
class Volume(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv3d(1, 1, 1)
    def forward(self, x): return self.conv(x[None, None]).relu()
class Plain(torch.nn.Module):
    def forward(self, x): return x[0].sin() + torch.nn.functional.linear(x, x)

counts = []
for kind in (Slices, Writes, Dense, Volume, Plain):
    torch.compiler.reset()
    dynamo_counters.clear()
    model, x = kind(), torch.randn(4, 4, 4) if kind is Volume else torch.randn(4, 4)
    with torch.no_grad():
        expected = model(x)
        result = torch.compile(model, backend="npu", options={"codegen": "eager"})(x)
    torch.testing.assert_close(result, expected)
    counts.append(sum(dynamo_counters["graph_break"].values()))
print("breaks", *[int(count > 0) for count in counts])
"""
EXPECTED = {
    "": "0 0 0 0 0",
    "SLICE": "1 0 0 0 0",
    "setitem, nn.conv3d": "0 1 0 1 0",
    "NN.LINEAR": "0 0 1 0 0",
}


def run_with_breaks(value: str) -> subprocess.CompletedProcess[str]:
    return python(["-c", SCRIPT], BREAK_GRAPH_OP_LIST=value)


QUICK = "setitem, nn.conv3d"


@pytest.mark.parametrize("value", [QUICK, *(slow(value) for value in EXPECTED if value != QUICK)])
def test_graphs_break_there_and_nowhere_else(value: str) -> None:
    done = run_with_breaks(value)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"breaks {EXPECTED[value]}"


def test_another_name_is_refused() -> None:
    done = run_with_breaks("SLICE,NN.CONV4D")
    assert done.returncode != 0
    assert "NN.CONV4D" in done.stderr
    assert "SETITEM" in done.stderr, "what there is"
