"""Replacements of patterns in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchair.core.torch_private.compilers.pattern_matcher import fwd_only
from torchair.passes.patterns.sets.registry import OF_CAPTURE, always

__all__ = ["register_replacement"]


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] = fwd_only,
    extra_check: Callable[[Any], bool] = always,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace what `search_fn` traces to by what `replace_fn` traces to, in every graph that `npugraph_ex`
    compiles from now on: by the backend of this name, or with a configuration of this package.

    The parameters are those of `torchair.register_replacement`, whose rules are others.
    """
    OF_CAPTURE.register(
        search_fn, replace_fn, example_inputs, trace_fn, extra_check, search_fn_pattern, scalar_workaround,
        skip_duplicates,
    )  # fmt: skip
