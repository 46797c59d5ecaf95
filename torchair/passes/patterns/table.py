"""The one set of pattern replacements: users add with `register_replacement`, the pass applies all of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx

from torchair.core.torch_private import PatternMatcherPass, fwd_only
from torchair.core.torch_private import register_replacement as register_pattern
from torchair.passes.run import PassContext

_rules = PatternMatcherPass(pass_name="npugraph_ex_generic_pattern_pass")


def _undecomposed(fn: Callable[..., Any], args: Any, **options: Any) -> fx.GraphModule:
    """As `fwd_only`, but nothing is taken apart: our graphs are not either when the patterns run."""
    options["get_decomp_fn"] = dict
    return fwd_only(fn, args, **options)


def _always(match: Any) -> bool:
    return True


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] = fwd_only,
    extra_check: Callable[[Any], bool] = _always,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace what `search_fn` traces to by what `replace_fn` traces to, in every graph compiled from now on.

    `example_inputs` are sample (fake) tensors for tracing; `extra_check(match)` has the last word on each
    match.
    """
    register_pattern(
        search_fn,
        replace_fn,
        list(example_inputs),
        _undecomposed if trace_fn is fwd_only else trace_fn,
        _rules,
        extra_check=_on_one_stream(extra_check),
        search_fn_pattern=search_fn_pattern,
        scalar_workaround=dict(scalar_workaround) if scalar_workaround else None,
        skip_duplicates=skip_duplicates,
    )


def _on_one_stream(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Nodes with different stream labels are never fused."""

    def run(match: Any) -> bool:
        return len({node.meta.get("stream_label") for node in match.nodes}) <= 1 and check(match)

    return run


def apply_pattern_passes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """All registered replacements, widest first as they were registered."""
    changed: int = _rules.apply(gm.graph) if _rules.patterns else 0
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed
