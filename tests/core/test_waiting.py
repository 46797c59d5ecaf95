"""Nobody waits without a word: what takes long says what it is, since when, and what would be quicker."""

from __future__ import annotations

import os
import pty
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.backend.watch import config_of
from torchair.backend import compile
from torchair.core import log


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LONG", 0.05)


@pytest.mark.usefixtures("impatient")
def test_one_line_where_nobody_looks_at_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with log.told_if_slow("graph_1 of 3 ops is being compiled", "be quick"):
        time.sleep(0.3)
    said = capfd.readouterr()
    assert re.fullmatch(
        r"torchair: graph_1 of 3 ops is being compiled, since \d\d:\d\d:\d\d; be quick\n", said.err
    )
    assert not said.out


def test_nothing_is_said_of_what_is_quick(capfd: pytest.CaptureFixture[str]) -> None:
    with log.told_if_slow("graph_1 is being compiled", "be quick"):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_line_with_a_clock_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with log.told_if_slow("graph_1 is being compiled", "be quick"):
            time.sleep(0.6)
        deadline, shown = time.monotonic() + 10, b""
        while b"0:00:0" not in shown and time.monotonic() < deadline:
            shown += os.read(leader, 4096)
    os.close(leader)
    assert b"graph_1 is being compiled (be quick)" in shown


@pytest.mark.usefixtures("impatient")
def test_a_compile_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing but errors is logged."""
    build: Callable[..., Any] = compile.build

    def slowly(*args: Any) -> Any:
        time.sleep(0.3)
        return build(*args)

    monkeypatch.setattr(compile, "build", slowly)
    backend = torchair.get_npu_backend(compiler_config=config_of({}))
    run = torch.compile(lambda x: x.sin() + 1, backend=backend)
    run(torch.randn(3))
    said = capfd.readouterr().err
    assert re.search(r"graph_\d+ of 2 ops is being compiled, since .*engine_config.codegen='eager'", said)
