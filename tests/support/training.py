"""Did backward graphs go through the IR? Equal gradients do not tell: around it they are equal, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torchair.backend.pipeline import compile as backend
from torchair.capture import Runner
from torchair.convert.base.report import ConversionReport


def why_around(report: ConversionReport, calls: int) -> str:
    """How a graph of so many calls went around the IR, or a part of it; empty: not at all."""
    if report.detours:
        return f"detours: {report.detours}"
    if calls and not report.is_of_ir:
        return "nothing was converted"
    lost = [reason for reason in report.fallbacks if not reason.is_of_type]
    return f"carried through as they are: {lost}" if lost else ""


@contextmanager
def backward_through_the_ir() -> Iterator[None]:
    """At least one backward graph is compiled inside, and in graph mode each is converted as a whole."""
    found: list[str] = []
    compile_graph = backend.compile_graph

    def spied(gm: Any, ctx: Any) -> Runner:
        runner = compile_graph(gm, ctx)
        if ctx.request.is_backward:
            found.append("" if ctx.settings.captures else why_around(runner.conversion, ctx.info.num_calls))
        return runner

    with mock.patch.object(backend, "compile_graph", spied):
        yield
    assert found, "no backward graph was compiled"
    assert not any(found), found
