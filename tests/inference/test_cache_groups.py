"""Entries of programs with collectives: a group is known by its name and ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.process import python

PROGRAM = """
import json, sys, tempfile
import torch, torchair
from torch import distributed as dist

mode, cache, before, group = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
for _ in range(before):
    dist.new_group([0])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.group = None if group == "world" else dist.new_group([0])
        config = torchair.CompilerConfig()
        config.mode, config.engine_config.codegen = mode, "eager"
        self.run = torchair.inference.cache_compile(self._run, config=config, cache_dir=cache, dynamic=False)

    def _run(self, x):
        y = x * 2
        dist.all_reduce(y, group=self.group)
        dist.broadcast(y, 0, group=self.group)
        return y + 1

    def forward(self, x):
        return self.run(x)


with torch.no_grad():
    assert Net()(torch.ones(4)).tolist() == [3.0] * 4
print(json.dumps(torch._dynamo.utils.counters["stats"]["unique_graphs"]))
"""


@pytest.mark.parametrize(("mode", "group"), [("max-autotune", "own"), ("npugraph_ex", "world")])
def test_a_group_of_another_name_is_a_miss(tmp_path: Path, mode: str, group: str) -> None:
    compiled = []
    for before in (0, 0, 1):
        done = python(["-c", PROGRAM, mode, str(tmp_path), str(before), group])
        assert done.returncode == 0, done.stderr
        assert "DegradedWarning" not in done.stderr
        compiled.append(json.loads(done.stdout.splitlines()[-1]))
    assert compiled == [1, 0, 0 if group == "world" else 1]
