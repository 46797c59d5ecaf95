"""What tests of `register_replacement` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.passes.graphs import calls, traced
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.passes.patterns.sets import registry
from torchair.passes.patterns.sets.registry import apply_pattern_passes


def separate_sets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rules of one test are no other's: the body of a fixture."""
    known = dict(EXTENSIONS)
    monkeypatch.setattr(
        registry, "OF_TORCHAIR", registry.RuleSet("torchair", "torchair.register_replacement")
    )
    yield
    EXTENSIONS.clear()
    EXTENSIONS.update(known)


def fires(fn: Callable[..., Any], *args: Any, tracing: str = "fake") -> int:
    """How often a rule fires in a function; the numbers stay."""
    return len(after(fn, *args, tracing=tracing)[1])


def after(fn: Callable[..., Any], *args: Any, tracing: str = "fake") -> tuple[list[str], list[int]]:
    """The calls behind the pass, and a one for each rule that fired."""
    gm, ctx = traced(fn, *args, tracing=tracing)
    fired = apply_pattern_passes(gm, ctx)
    torch.testing.assert_close(gm(*args), fn(*args))
    return calls(gm), [1] * fired


def why(fn: Callable[..., Any], *args: Any) -> str:
    """Why nothing fires."""
    gm, ctx = traced(fn, *args)
    ctx.explains = True
    assert apply_pattern_passes(gm, ctx) == 0
    return ctx.rules[0].why
