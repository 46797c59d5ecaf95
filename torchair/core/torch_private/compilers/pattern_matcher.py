"""Inductor's pattern matcher: what a graph is searched for, and what it becomes. It takes most of a second to
load: not before there is a pattern.
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
    """An empty set of replacements."""
    return _PATTERNS.PatternMatcherPass(pass_name=name)


def fwd_only(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """Traces what a pattern is made of: the forward computation alone."""
    return _PATTERNS.fwd_only(fn, args, **options)


def is_fwd_only(trace: Any) -> bool:
    """This one, or torch's own?"""
    return trace is fwd_only or trace is _PATTERNS.fwd_only


def accepts_decompositions(trace: Callable[..., Any]) -> bool:
    """Does a tracer take `get_decomp_fn`? Not all do that users have."""
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
    """Add a replacement to a set; its entry there. Who calls it has looked for duplicates: of entries, not of
    the set itself, torch keeps no account.
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
    # torch keeps this dict for the traces with the values of a match, which have no wildcards: a constant
    # that happens to be as the example was would be one.
    wildcards.clear()
    return matcher.patterns[made.op, made.fns[0]][-1]


def exact_pattern(gm: fx.GraphModule, scalars: Mapping[str, float] | None = None) -> Any:
    """The pattern of a traced graph, with all its numbers but those of these wildcards."""
    names = [str(node.target) for node in gm.graph.find_nodes(op="placeholder")]
    return _PATTERNS.fx_to_pattern(gm, argnames=names, scalar_workaround=dict(scalars or {}))


# Kinds of patterns


def is_pattern(value: Any) -> bool:
    """Is this one, and not a constant?"""
    return isinstance(value, _PATTERNS.PatternExpr)


def is_call(pattern: Any) -> bool:
    """A call with arguments?"""
    return isinstance(pattern, _PATTERNS._TargetArgsExpr)


def is_keyword(pattern: Any) -> bool:
    """A value with a name?"""
    return isinstance(pattern, _PATTERNS.KeywordArg | _PATTERNS.ExclusiveKeywordArg)


def is_any(pattern: Any) -> bool:
    """Whatever there is?"""
    return isinstance(pattern, _PATTERNS.Ignored | _PATTERNS.Arg)


def is_nameless(pattern: Any) -> bool:
    """A value of which only the place is known?"""
    return isinstance(pattern, _PATTERNS.Arg)


def is_multiple(users: Any) -> bool:
    """Any number of readers?"""
    return users is _PATTERNS.MULTIPLE


def outputs_of(pattern: Any) -> list[Any]:
    """The patterns of its results."""
    is_several = isinstance(pattern, _PATTERNS.MultiOutputPattern)
    return [each for each in pattern.outputs if each is not None] if is_several else [pattern]


def values_in(pattern: Any) -> list[Any]:
    """What a pattern has that is no call: values with a name and without, in lists too."""
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
    """All calls in a pattern, each once."""
    found, rest = dict[Any, None](), list(outputs_of(pattern))
    while rest:
        each = rest.pop()
        if is_call(each) and each not in found:
            found[each] = None
            rest.extend(part for part in each.flat_args_kwargs[0] if is_pattern(part))
    return list(found)
