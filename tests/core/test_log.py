"""Nobody waits without a word: what takes long says what it is, since when, and what would be quicker."""

from __future__ import annotations

import os
import pty
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import make_config
from torchair.backend.pipeline import compile
from torchair.core import log


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LONG", 0.05)


@pytest.mark.usefixtures("impatient")
def test_progress_without_terminal_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with log.warn_if_slow("graph_1 of 3 ops is being compiled", "be quick"):
        time.sleep(0.3)
    said = capfd.readouterr()
    assert re.fullmatch(
        r"torchair: graph_1 of 3 ops is being compiled, since \d\d:\d\d:\d\d; be quick\n", said.err
    )
    assert not said.out


def test_quick_block_prints_no_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with log.warn_if_slow("graph_1 is being compiled", "be quick"):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_line_with_a_clock_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with log.warn_if_slow("graph_1 is being compiled", "be quick"):
            time.sleep(0.6)
        deadline, shown = time.monotonic() + 10, b""
        while b"0:00:0" not in shown and time.monotonic() < deadline:
            shown += os.read(leader, 4096)
    os.close(leader)
    assert b"graph_1 is being compiled (be quick)" in shown


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are compiled so."""
    made = compile.compile_graph

    def compile_graph(*args: Any) -> Any:
        time.sleep(0.3)
        return made(*args)

    monkeypatch.setattr(compile, "compile_graph", compile_graph)


@pytest.mark.usefixtures("impatient", "slowly")
def test_a_compile_that_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where nothing but errors is logged."""
    backend = torchair.get_npu_backend(compiler_config=make_config({"engine_config.codegen": "reference"}))
    run = torch.compile(lambda x: x.sin() + 1, backend=backend)
    run(torch.randn(3))
    said = capfd.readouterr().err
    assert re.search(r"graph_\d+ of 2 ops is being compiled, since .*engine_config.codegen='eager'", said)


def none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)


def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open(os.devnull, "w")  # noqa: SIM115 - it is closed, which is the point
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)


@pytest.mark.usefixtures("impatient")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lack", [none, closed, no_threads])
def test_closed_stderr_does_not_stop_the_work(
    lack: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service without a console, or while Python ends."""
    wrong: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", wrong.append)
    done = False
    with monkeypatch.context() as lacking:
        lack(lacking)
        with log.warn_if_slow("graph_1 is being compiled", "be quick"):
            time.sleep(0.2)
            done = True
    assert done
    assert not wrong


@pytest.mark.usefixtures("impatient", "slowly")
def test_fastest_codegen_gets_no_hint(capfd: pytest.CaptureFixture[str]) -> None:
    backend = torchair.get_npu_backend(compiler_config=make_config({"engine_config.codegen": "eager"}))
    torch.compile(torch.sin, backend=backend)(torch.ones(2))
    said = capfd.readouterr().err
    assert "is being compiled" in said
    assert "starts at once" not in said
