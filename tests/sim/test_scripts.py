"""Scripts for the NPU, as users write them, on the simulated device: `python -m torchair sim script.py`. Each
asserts its own results against the CPU, and that its graphs were compiled and replayed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process import python
from torchair.core.diagnostics import STRICT

HERE = Path(__file__).parent / "scripts"
SCRIPTS = sorted(path for path in HERE.glob("*.py") if path.name != "proof.py")
# They start processes, which may write and build nothing beside the tests.
QUIET = {"TORCHAIR_EXTENSION": "1", "OMP_NUM_THREADS": "1"}


def test_there_are_scripts_of_the_order_and_others() -> None:
    names = [path.stem for path in SCRIPTS]
    assert len([name for name in names if name.startswith("order_")]) >= 11
    assert len([name for name in names if not name.startswith("order_")]) >= 30


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, tmp_path: Path) -> None:
    programs = str(tmp_path / "programs")
    done = python(
        ["-m", "torchair", "sim", str(path)],
        tmp_path,
        **{STRICT: "1", "TORCHAIR_PROGRAMS": programs, **QUIET},
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert "DegradedWarning" not in done.stderr


def test_a_script_that_fails_fails(tmp_path: Path) -> None:
    """The scripts' own checks can fail: a replay that never was, and numbers that are wrong."""
    for line in (
        "with proof.replayed(1): torch.ones(1, device='npu')",
        "proof.close(torch.ones(1).npu(), torch.zeros(1))",
    ):
        script = tmp_path / "script.py"
        script.write_text(
            f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport torch_npu, torch, proof\n{line}\n"
        )
        done = python(["-m", "torchair", "sim", str(script)], tmp_path)
        assert done.returncode == 1
        assert "AssertionError" in done.stderr
        assert "torchair/cli" not in done.stderr, "the traceback begins with the script"
