"""Environment variables: each that is read is a row, each row does what it says."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchair
from tests.structure.tree import ROOT, modules, parse
from tests.support.process import python
from tests.support.slow import slow
from torchair.core.environment import NOT_READ, VARIABLES, is_on, not_read, text_of
from torchair.core.errors import BadOption
from torchair.core.log import EVENT_LEVEL, level_by_environment, make_logger

TABLE = "torchair.core.environment"
READERS = {"text_of", "is_on", "is_set"}
BY_TORCH = {"TORCH_LOGS"}
PREFIX = "import torchair, logging\n"


def dotted(node: ast.AST) -> str:
    """What is called or looked into, where it is a name with dots in it."""
    match node:
        case ast.Call():
            return f"{dotted(node.func)}("
        case ast.Subscript():
            return f"{dotted(node.value)}["
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
        case ast.Name():
            return node.id
    return ""


def direct_reads() -> Iterator[str]:
    """Where a single variable is taken from the environment."""
    for name, path in modules().items():
        for node in ast.walk(parse(path)):
            text = dotted(node) if isinstance(node, ast.Call | ast.Subscript) else ""
            if text.startswith(("os.getenv(", "os.environ.get(", "os.environ[", "getenv(", "environ")):
                yield name


def names_read() -> set[str]:
    """What is asked for through the table, by literal or by a constant of the module."""
    found: set[str] = set()
    for path in modules().values():
        tree = parse(path)
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and dotted(node.func) in READERS and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    found.add(argument.value)
                elif isinstance(argument, ast.Name) and argument.id in constants:
                    found.add(constants[argument.id])
    return found


def test_all_reads_go_through_the_table() -> None:
    assert set(direct_reads()) == {TABLE}


def test_every_row_is_read_and_every_read_is_a_row() -> None:
    read_here = {name for name, row in VARIABLES.items() if row.read != NOT_READ} - BY_TORCH
    assert names_read() == read_here


def test_the_page_has_every_row() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in VARIABLES)


def test_a_variable_without_a_row_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        text_of("TORCHAIR_NO_SUCH_THING")
    monkeypatch.setenv("ASCEND_DEVICE_ID", "3")
    assert not_read() == ["ASCEND_DEVICE_ID"]
    with pytest.raises(AssertionError, match="say when"):
        text_of("ASCEND_DEVICE_ID")


def test_flag_variable_reads_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("", False), ("1", True), ("ON", True), ("no", False)):
        monkeypatch.setenv("TORCH_NPUGRAPH_GC", value)
        assert is_on("TORCH_NPUGRAPH_GC") is wanted
    monkeypatch.setenv("TORCH_NPUGRAPH_GC", "perhaps")
    with pytest.raises(BadOption, match="TORCH_NPUGRAPH_GC"):
        is_on("TORCH_NPUGRAPH_GC")


LEVELS = {"0": 10, "1": 20, "2": 30, "3": 40, "4": EVENT_LEVEL, "": 40}


@pytest.mark.parametrize("value", LEVELS)
def test_the_level_of_the_log(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TNG_LOG_LEVEL", value)
    assert level_by_environment() == LEVELS[value]


@pytest.mark.parametrize("value", ["5", "-1", "DEBUG", "0 "])
def test_another_level_is_a_warning_and_only_errors(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TNG_LOG_LEVEL", value)
    with pytest.warns(UserWarning, match="TNG_LOG_LEVEL is"):
        assert level_by_environment() == logging.ERROR


def test_a_given_level_wins_over_the_debug_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    assert level_by_environment() == logging.DEBUG
    monkeypatch.setenv("TNG_LOG_LEVEL", "2")
    assert level_by_environment() == logging.WARNING


def test_the_level_is_read_once_at_the_import(tmp_path: Path) -> None:
    script = PREFIX + "print(torchair.logger.level, torchair.npugraph_ex.logger.level)"
    info = python(["-c", script], tmp_path, TNG_LOG_LEVEL="1", ASCEND_DEVICE_ID="1").stdout
    assert info.split()[-2:] == ["20", "20"]
    assert "ASCEND_DEVICE_ID is set, and nothing here reads it" in info
    warned = python(["-c", script], tmp_path, TNG_LOG_LEVEL="7")
    assert warned.stdout.split()[-2:] == ["40", "40"]
    assert warned.stderr.count("UserWarning: TNG_LOG_LEVEL is '7'") == 1


@pytest.mark.parametrize(
    ("value", "levels"), [("+torchair", ["10", "40"]), slow("npugraph_ex", ["40", "20"])]
)
def test_the_logs_of_torch_know_ours(value: str, levels: list[str], tmp_path: Path) -> None:
    script = "import torch\n" + PREFIX + "print(torchair.logger.level, torchair.npugraph_ex.logger.level)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_LOGS": value}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-2:] == levels, done.stderr


def test_log_levels_events_and_messages_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = make_logger("torchair_test")
    log.setLevel(EVENT_LEVEL)
    log.warning("hidden")
    log.event("%d things", 3)
    log.error("wrong")
    log.setLevel(logging.WARNING)
    for _ in range(2):
        log.warning_once("take %s", "care")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["[EVENT]", "[ERROR]", "[WARNING]"]
    assert all(f"[{Path(__file__).name}:" in line for line in lines), "the line that said it"
    assert lines[0].endswith("3 things")
    assert lines[2].endswith("take care")


LOGS = (torchair.logger, torchair.npugraph_ex.logger)


@pytest.fixture
def quiet_again() -> Iterator[None]:
    yield
    for log in LOGS:
        log.setLevel(logging.ERROR)


@pytest.mark.parametrize(("backend", "product"), [("npu", "TORCHAIR"), ("npugraph_ex", "NPUGRAPH_EX")])
def test_info_and_debug_log_expected_lines(
    backend: str, product: str, capsys: pytest.CaptureFixture[str], quiet_again: None
) -> None:
    def said(level: int) -> str:
        torch.compiler.reset()
        for log in LOGS:
            log.setLevel(level)
        options = {"codegen": "eager"}
        torch.compile(lambda x: torch.softmax(x, -1) + 1, backend=backend, options=options)(torch.ones(2, 2))
        return capsys.readouterr().out

    quiet, info, debug = (said(level) for level in (logging.ERROR, logging.INFO, logging.DEBUG))
    assert quiet == ""
    head = f"[INFO] {product}("
    assert f"{head}" in info
    for text in (
        "input 0 ",
        "torch.float32[2, 2] on cpu",
        "FX graph:",
        "aten._softmax.default",
        "options: {",
    ):
        assert text in info
    assert "[DEBUG]" not in info
    for text in ("pass eliminate_dead_code", "nodes", "whole call", "contiguous, at 0x", "output 0: Tensor"):
        assert text in debug
    if backend == "npu":
        assert "_softmax = aten._softmax.default becomes SoftmaxV2" in debug
