"""`python -m torchair compare`: exit status, report and saved script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.process import python
from torchair.__main__ import main

SCRIPT = """
import torch
import torchair
from torchair import ge


def right():
    return torch.nn.Linear(4, 4), torch.randn(2, 4)


def wrong():
    torchair.register_fx_node_ge_converter(torch.ops.aten.sinc.default)(lambda self: ge.Cos(self))
    return torch.sinc, (torch.randn(3),)


def named():
    return torch.add, (torch.ones(2),), {"other": torch.ones(2)}


def by_name():
    return torch.nn.functional.relu, {"input": torch.ones(2)}


def nothing():
    return 3


def fails():
    raise ValueError("no such file")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SCRIPT)
    return path


def command(script: Path, *rest: str) -> subprocess.CompletedProcess[str]:
    return python(["-m", "torchair", "compare", f"{script}:{rest[0]}", *rest[1:]], script.parent)


def test_wrong_and_saved(script: Path) -> None:
    done = command(script, "wrong", "--save", "again.py", "--codegen", "eager")
    assert done.returncode == 1, done.stderr
    assert "converter aten.sinc.default (the user's)" in done.stdout
    saved = script.parent / "again.py"
    assert saved.stat().st_mode & 0o777 == 0o600
    again = python([str(saved)])
    # The converter is not in the script: without it there is no fault.
    assert again.returncode == 0, again.stderr
    assert "equal" in again.stdout


@pytest.mark.parametrize("function", ["right", "named", "by_name"])
def test_compare_command_on_correct_model_returns_zero(
    script: Path, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"{script}:{function}", "--codegen", "eager", "--mode", "npugraph_ex"]) == 0
    assert "equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("nothing", "did not return a model"),
        ("missing", "has no function 'missing'"),
        ("fails", "no such file"),
    ],
)
def test_compare_command_refuses_wrong_arguments(
    script: Path, function: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"{script}:{function}"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("text", ["models.py", "models:f", "missing.py:f"])
def test_no_function_is_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", text]) == 2
    assert capsys.readouterr().err


def test_the_parser_has_the_same_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--against", "numpy", "a.py:f"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
