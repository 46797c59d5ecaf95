"""Several processes: each writes a graph of its own, and others load it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from tests.backend.export.test_wire import check
from tests.support.process import ROOT

SCRIPT = """
    import sys, torch, torchair
    from torch import distributed as dist
    step, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{step}.store", rank=rank, world_size=2)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(rank)
            self.a = torch.nn.Linear(4, 3)

        def forward(self, x):
            y = self.a(x).relu()
            dist.all_reduce(y)
            dist.broadcast(y, 1)
            return y + self.a(x)

    x = torch.arange(8.0).reshape(2, 4)
    if step.endswith("write"):
        net = Net().eval()
        torchair.CompiledModel.save_graph(net, (x,), save_path="saved")
        torchair.dynamo_export(x, model=net, export_path="exported", export_name="net")
        with torch.no_grad():
            torch.save(net(x), f"want{rank}.pt")
    else:
        del Net
        torch.save(torchair.CompiledModel.load_graph("saved")(x), f"saved{rank}.pt")
        torch.save(torchair.load_air(f"exported/net{rank}.air")(x), f"exported{rank}.pt")
    dist.barrier()
"""


def run_two_ranks(step: str, folder: Path) -> None:
    """Two processes at once."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "script.py", str(folder / step), str(rank)],
            cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said


@pytest.mark.full
def test_each_rank_loads_its_own_graph(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(dedent(SCRIPT))
    run_two_ranks("write", tmp_path)
    for rank in range(2):
        assert (tmp_path / f"saved/rank_{rank}/compiled_graph{rank}.air").is_file()
        text = (tmp_path / f"exported/rank_{rank}/dynamo.pbtxt").read_text()
        assert '"HcomAllReduce"' in text
        assert '"HcomBroadcast"' in text
        check(tmp_path / "exported", f"net{rank}.air")
    run_two_ranks("read", tmp_path)
    for rank in range(2):
        want = torch.load(tmp_path / f"want{rank}.pt")
        for name in ("saved", "exported"):
            torch.testing.assert_close(torch.load(tmp_path / f"{name}{rank}.pt"), want)
    assert not torch.equal(torch.load(tmp_path / "want0.pt"), torch.load(tmp_path / "want1.pt"))
