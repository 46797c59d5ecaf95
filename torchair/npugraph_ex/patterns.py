"""Replace patterns in graphs."""

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
    """Register a replacement for all graphs that `npugraph_ex` compiles from now on.

    It applies to the backend of this name, and to configs of this package. The rules of
    `torchair.register_replacement`, which has the same parameters, are separate.

    Args:
        search_fn: The function whose traced graph is searched.
        replace_fn: The function whose traced graph replaces a match; it has the parameters of `search_fn`.
        example_inputs: Inputs to trace both functions with.
        trace_fn: The function that traces them.
        extra_check: Called with each match; False rejects it.
        search_fn_pattern: A pattern of torch's pattern matcher, used instead of the traced `search_fn`.
        scalar_workaround: Number parameters that match any value, with the values they are traced with.
        skip_duplicates: Whether a pattern that is registered already is ignored.
    """
    OF_CAPTURE.register(
        search_fn, replace_fn, example_inputs, trace_fn, extra_check, search_fn_pattern, scalar_workaround,
        skip_duplicates,
    )  # fmt: skip
