"""Runs the files of `inside` in processes where the simulated device is installed: for the other tests there
must be none.
"""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path

import pytest

from tests.support.process import fresh, python
from torchair.core.registries.lazy_registry import BACKENDS, NAMESPACES

HERE = Path(__file__).parent
FILES = sorted((HERE / "inside").glob("test_*.py"))
COMPILE = ("test_compiled", "test_models", "test_native_streams", "test_random_streams", "test_two_devices")
GROUPS = {
    "compiled": [path for path in FILES if path.stem in COMPILE],
    "op by op": [path for path in FILES if path.stem not in COMPILE],
}
"""A process begins in six seconds: few of them, and yet more than one."""


@pytest.mark.parametrize("group", GROUPS)
def test_with_the_device(group: str, request: pytest.FixtureRequest) -> None:
    run_inside(GROUPS[group], str(request.config.getoption("markexpr")), "cpu")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["test_device", "test_graphs", "test_order", "test_steps"])
def test_sim_tests_pass_with_gpu_backing(name: str) -> None:
    run_inside([HERE / "inside" / f"{name}.py"], "not full", "cuda")


def run_inside(paths: list[Path], wanted: str, backing: str) -> None:
    """In each file some test must be found, and all must pass."""
    # CUDA cannot be started in a process that was forked.
    run = python if backing == "cpu" else fresh
    without = [word for name in ("cacheprovider", "xdist", "benchmark") for word in ("-p", f"no:{name}")]
    done = run(
        ["-m", "pytest", "-v", *without, "-m", wanted, *map(str, paths)],
        HERE.parents[1],
        TORCHAIR_SIM_INSIDE="1",
        TORCHAIR_SIM_BACKING=backing,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for path in paths:
        assert re.search(rf"/{path.name}::\S+ PASSED", done.stdout), f"no test of {path.name} ran"


CHANGED = """
import sys, torch, torch.nn, torch._dynamo
def seen():
    places = {"torch": torch, "Tensor": torch.Tensor, "Module": torch.nn.Module, "ops": torch.ops,
              "Storage": torch.UntypedStorage, "accelerator": torch.accelerator}
    named = ((place, *item) for place, owner in places.items() for item in vars(owner).items())
    found = {f"{place} {name}: {id(value)}" for place, name, value in named}
    found |= {f"module {name}" for name in sys.modules if name.startswith(("torch.", "torch_npu"))}
    return found | {torch._C._get_privateuse1_backend_name()}
before = seen()
import torchair
changed = {line.rsplit(":")[0] for line in seen() - before}
print(sorted(line for line in changed if not line.startswith("module torch.")))
"""


def test_importing_torchair_brings_no_device() -> None:
    """What it changes is what the reference says."""
    done = python(["-c", CHANGED])
    assert done.returncode == 0, done.stderr
    assert literal_eval(done.stdout) == sorted(f"ops {name}" for name in NAMESPACES)
    for name in (*NAMESPACES, *BACKENDS):
        assert f"`{name}`" in (HERE.parents[1] / "docs/reference/api.md").read_text()[:1000]
