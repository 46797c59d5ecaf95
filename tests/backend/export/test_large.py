"""A model of more than 2 GiB: its weights are written without a second copy of them, and all or nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.process import python

SCRIPT = """
    import json, os, resource, signal, sys
    import torch, torchair

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096, bias=False) for _ in range(33))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return x

    class Interrupting:
        def write(self, text):
            if " 50 %" in text:
                os.kill(os.getpid(), signal.SIGINT)

        def flush(self):
            pass

    small = torch.nn.Linear(4, 4)
    torchair.dynamo_export(torch.randn(1, 4), model=small, export_path="small")  # imports, caches
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        net = Net()
    net.to_empty(device="cpu")
    for weight in net.parameters():
        weight.data.fill_(0.01)
    x = torch.randn(1, 4096)
    torchair.dynamo_export(x, model=net, export_path="whole")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    stdout, sys.stdout = sys.stdout, Interrupting()
    interrupted = False
    try:
        torchair.dynamo_export(x, model=net, export_path="half")
    except KeyboardInterrupt:
        interrupted = True
    sys.stdout = stdout
    size = sum(weight.nbytes for weight in net.parameters())
    print(json.dumps({"size": size, "grown": grown, "interrupted": interrupted}))
"""


@pytest.mark.full
def test_a_large_model(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(dedent(SCRIPT))
    done = python([str(tmp_path / "script.py")], tmp_path)
    assert done.returncode == 0, done.stderr
    *progress, last = done.stdout.strip().splitlines()
    found = json.loads(last)
    assert found["size"] > 2 << 30
    assert found["grown"] < 1.3 * found["size"]
    shown = "\n".join(progress)
    assert all(f"saving weights: {percent} %" in shown for percent in (1, 50, 100))
    files = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    assert sum(name.startswith("layers_") for name in files) == 33
    assert sum(files.values()) > found["size"]
    assert files["export.air"] < 1 << 20
    shutil.rmtree(tmp_path / "whole")  # pytest keeps its folders
    assert found["interrupted"]
    assert not list((tmp_path / "half").iterdir())
