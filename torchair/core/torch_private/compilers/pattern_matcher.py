"""Inductor's pattern matcher: patterns and their replacements. It takes most of a second to load, so it is
loaded with the first pattern.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from torchair.core.lazy_module import LazyModule

__all__ = [
    "accepts_decompositions",
    "call_patterns",
    "exact_pattern",
    "fwd_only",
    "is_any",
    "is_call",
    "is_fwd_only",
    "is_keyword",
    "is_multiple",
    "is_nameless",
    "is_pattern",
    "outputs_of",
    "pattern_pass",
    "register_pattern",
    "values_in",
]

_PATTERNS: Any = LazyModule("torch._inductor.pattern_matcher")


def pattern_pass(name: str) -> Any:
    """Return an empty set of replacements."""
    return _PATTERNS.PatternMatcherPass(pass_name=name)


def fwd_only(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """Trace a pattern: only the forward computation."""
    return _PATTERNS.fwd_only(fn, args, **options)


def is_fwd_only(trace: Any) -> bool:
    """Return whether the tracer is this `fwd_only` or torch's."""
    return trace is fwd_only or trace is _PATTERNS.fwd_only


def accepts_decompositions(trace: Callable[..., Any]) -> bool:
    """Return whether a tracer accepts `get_decomp_fn`. Not all user-defined tracers do."""
    names = inspect.signature(trace).parameters.values()
    return any(p.name == "get_decomp_fn" or p.kind is inspect.Parameter.VAR_KEYWORD for p in names)


def register_pattern(
    matcher: Any,
    find: Callable[..., Any],
    put: Callable[..., Any],
    inputs: Sequence[Any],
    trace: Callable[..., Any],
    check: Callable[[Any], bool],
    pattern: Any = None,
    scalars: Mapping[str, float] | None = None,
) -> Any:
    """Add a replacement to a set and return its entry. The caller checks for duplicates, because torch only
    checks entries of its own sets.
    """
    wildcards = dict(scalars or {})
    made = _PATTERNS.register_replacement(
        find,
        put,
        list(inputs),
        trace,
        matcher.patterns,
        extra_check=check,
        search_fn_pattern=pattern,
        scalar_workaround=wildcards,
    )
    # torch keeps this dict for traces with the values of a match, which have no wildcards. A constant that
    # equals the example would become one.
    wildcards.clear()
    return matcher.patterns[made.op, made.fns[0]][-1]


def exact_pattern(gm: fx.GraphModule, scalars: Mapping[str, float] | None = None) -> Any:
    """Return the pattern of a traced graph, with all its numbers except these wildcards."""
    names = [str(node.target) for node in gm.graph.find_nodes(op="placeholder")]
    return _PATTERNS.fx_to_pattern(gm, argnames=names, scalar_workaround=dict(scalars or {}))


# Kinds of patterns


def is_pattern(value: Any) -> bool:
    """Return whether the value is a pattern, not a constant."""
    return isinstance(value, _PATTERNS.PatternExpr)


def is_call(pattern: Any) -> bool:
    """Return whether the pattern is a call with arguments."""
    return isinstance(pattern, _PATTERNS._TargetArgsExpr)


def is_keyword(pattern: Any) -> bool:
    """Return whether the pattern is a named value."""
    return isinstance(pattern, _PATTERNS.KeywordArg | _PATTERNS.ExclusiveKeywordArg)


def is_any(pattern: Any) -> bool:
    """Return whether the pattern matches any value."""
    return isinstance(pattern, _PATTERNS.Ignored | _PATTERNS.Arg)


def is_nameless(pattern: Any) -> bool:
    """Return whether the pattern is a value without a name."""
    return isinstance(pattern, _PATTERNS.Arg)


def is_multiple(users: Any) -> bool:
    """Return whether any number of users is allowed."""
    return users is _PATTERNS.MULTIPLE


def outputs_of(pattern: Any) -> list[Any]:
    """Return the patterns of the results."""
    is_several = isinstance(pattern, _PATTERNS.MultiOutputPattern)
    return [each for each in pattern.outputs if each is not None] if is_several else [pattern]


def values_in(pattern: Any) -> list[Any]:
    """Return all parts of a pattern that are not calls: named and unnamed values, also in lists."""
    found, rest = list[Any](), list(outputs_of(pattern))
    while rest:
        each = rest.pop()
        if is_call(each):
            rest.extend(each.flat_args_kwargs[0])
        elif inner := getattr(each, "pattern", getattr(each, "inner_pattern", None)):
            rest.append(inner)
        elif is_pattern(each):
            found.append(each)
    return found


def call_patterns(pattern: Any) -> list[Any]:
    """Return all calls in a pattern, each once."""
    found, rest = dict[Any, None](), list(outputs_of(pattern))
    while rest:
        each = rest.pop()
        if is_call(each) and each not in found:
            found[each] = None
            rest.extend(part for part in each.flat_args_kwargs[0] if is_pattern(part))
    return list(found)
