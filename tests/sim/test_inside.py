"""Runs each file of `inside` in a process of its own, where the simulated device is installed: for the other
tests there must be none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted((HERE / "inside").glob("test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_with_the_device(path: Path, request: pytest.FixtureRequest) -> None:
    run_inside(path, str(request.config.getoption("markexpr")), "cpu")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["test_device", "test_graphs", "test_order", "test_steps"])
def test_with_a_gpu_behind_it(name: str) -> None:
    run_inside(HERE / "inside" / f"{name}.py", "not full", "cuda")


def run_inside(path: Path, wanted: str, backing: str) -> None:
    """Some test must be found, and all must pass."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            wanted,
            str(path),
        ],
        env=os.environ | {"TORCHAIR_SIM_INSIDE": "1", "TORCHAIR_SIM_BACKING": backing},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 0


def test_importing_torchair_brings_no_device() -> None:
    code = (
        "import sys, torch, torchair\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'\n"
        "assert not hasattr(torch, 'npu') and not hasattr(torch.Tensor, 'npu')\n"
        "assert not hasattr(torch.nn.Module, 'npu') and not hasattr(torch.Tensor, 'is_npu')\n"
        "assert 'torch_npu' not in sys.modules and 'torch.npu' not in sys.modules\n"
        "assert torch.accelerator.current_accelerator() is None or torch.cuda.is_available()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
