"""Explain how far a pattern matches a graph: where the nearest match stops, and why.

This follows torch's matcher step by step, because that one only returns that there is no match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.core.torch_private.compilers.pattern_matcher import (
    call_patterns,
    is_any,
    is_call,
    is_keyword,
    is_multiple,
    is_pattern,
    outputs_of,
)
from torchair.core.torch_private.operators.schemas import OpOverload

_MISSING = object()


@dataclass(frozen=True)
class MatchFailure:
    """Describe where a match stopped: after how many calls of the pattern, at which node, and why."""

    matched: int
    of: int
    node: fx.Node
    why: str

    def __str__(self) -> str:
        return f"{self.why}; the nearest match has {self.matched} of {self.of} calls"

    @property
    def source(self) -> str:
        """Return the source line of the node in the user's code."""
        return source_of(self.node)


def attempts(pattern: Any, graph: fx.Graph) -> Iterator[tuple[fx.Node, MatchFailure | None]]:
    """Yield each node with which the pattern may end, and where its match stops, if it does."""
    return ((node, find_failure(pattern, node)) for node in _anchors(pattern, graph))


def find_failure(pattern: Any, node: fx.Node) -> MatchFailure | None:
    """Return where the match that ends with this node stops, or None if it is complete."""
    outputs, total = outputs_of(pattern), len(call_patterns(pattern))
    state = _MatchState(outputs)
    stopped = state.follow(outputs[0], node, node)
    if stopped is None:
        stopped = next(
            (found for each in outputs[1:] if (found := _other(state, each, node)) is not None), None
        )
    return None if stopped is None else MatchFailure(state.matched, total, *stopped)


def op_names(pattern: Any) -> str:
    """Return the names of the ops that a call in a pattern may call."""
    return " or ".join(
        str(getattr(fn, "__name__", fn)) if callable(fn) and not isinstance(fn, OpOverload) else str(fn)
        for fn in pattern.fns
    )


def unnamed_arguments(pattern: Any, node: fx.Node) -> Iterator[tuple[str, Any]]:
    """Yield keyword arguments of a call that the pattern lacks and that differ from the default.

    torch's matcher ignores them, but `add(a, b, alpha=2)` is not `a + b`.
    """
    for key, value in node.kwargs.items():
        if key not in pattern.kwargs and not _is_same(_default(node.target, key), value):
            yield key, value


def why_other_constants(pattern: Any, node: fx.Node) -> str | None:
    """Return why a call that torch's matcher found has other constants than the pattern, or None."""
    whys = (
        why_other_constant(wanted, found, node)
        for wanted, found in _paired(pattern, node) or ()
        if not is_pattern(wanted)
    )
    return next((why for why in whys if why is not None), None)


def why_other_constant(wanted: Any, found: Any, node: fx.Node) -> str | None:
    """Return why an argument is not the constant of the pattern, or None.

    Equal numbers may differ: -0.0 is not 0.0, and 2.0 turns a tensor of integers into floats, which 2 does
    not.
    """
    if wanted != wanted and found != found:
        return f"{node} has {found!r}, which equals nothing and cannot be matched: pass it as a tensor"
    if isinstance(found, fx.Node) or not _is_same(wanted, found):
        return f"{node} has {found!r}, expected {wanted!r}"
    if not isinstance(wanted, int | float) or not isinstance(found, int | float):
        return None
    if wanted == 0 and math.copysign(1, wanted) != math.copysign(1, found):
        return f"{node} has {found!r}, expected {wanted!r}"
    if type(wanted) is type(found) or _is_dtype_given(node):
        return None
    kinds = type(found).__name__, type(wanted).__name__
    return (
        f"{node} has {found!r} ({kinds[0]}), expected {wanted!r} ({kinds[1]}), which changes the dtype "
        "of the result"
    )


def _is_dtype_given(node: fx.Node) -> bool:
    """Return whether the result has the float dtype of a tensor argument, or an explicit one.

    Then the Python types of its numbers do not matter.
    """
    result = node.meta.get("val")
    is_aten = isinstance(node.target, OpOverload) and node.target.namespace == "aten"
    if not is_aten or not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point:
        return False
    taken = (read.meta.get("val") for read in node.all_input_nodes)
    dtypes = [value.dtype for value in taken if isinstance(value, torch.Tensor)]
    return result.dtype in (*dtypes, node.kwargs.get("dtype"))


def _anchors(pattern: Any, graph: fx.Graph) -> Iterator[fx.Node]:
    last = outputs_of(pattern)[0]
    for target in last.fns:
        yield from graph.find_nodes(op=last.op, target=target)


def _other(state: _MatchState, pattern: Any, node: fx.Node) -> tuple[fx.Node, str] | None:
    """Match another result of the pattern with any node that is consistent with the match so far."""
    if pattern in state.places:
        return None
    best: tuple[int, tuple[fx.Node, str]] | None = None
    for candidate in _anchors(pattern, node.graph):
        attempt = state.copy()
        stopped = attempt.follow(pattern, candidate, candidate)
        if stopped is None:
            state.take(attempt)
            return None
        if attempt.matched > state.matched and (best is None or attempt.matched > best[0]):
            best = attempt.matched, stopped
    if best is not None:
        state.matched = best[0]
        return best[1]
    return node, (
        f"an output of the pattern is not used: no {op_names(pattern)} in the graph belongs to {node}"
    )


class _MatchState:
    """Track one match attempt."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs = outputs
        self.places: dict[Any, Any] = {}
        self._values: dict[str, Any] = {}
        self.matched = 0

    def copy(self) -> _MatchState:
        """Return a copy of this attempt."""
        result = _MatchState(self._outputs)
        result.take(self)
        return result

    def take(self, other: _MatchState) -> None:
        """Adopt the state of another attempt."""
        self.places, self._values, self.matched = dict(other.places), dict(other._values), other.matched

    def follow(self, pattern: Any, found: Any, reader: fx.Node) -> tuple[fx.Node, str] | None:
        """Return None where the pattern matches; else the node at which it does not, and why.

        `reader` is the call that takes the found value.
        """
        if not is_pattern(pattern):
            why = why_other_constant(pattern, found, reader)
            return None if why is None else (reader, why)
        if pattern in self.places:
            known = self.places[pattern]
            return None if known is found else (reader, f"{reader} takes {found}, expected {known}")
        self.places[pattern] = found
        if is_call(pattern):
            return self._call(pattern, found, reader)
        if is_keyword(pattern):
            known = self._values.setdefault(pattern.name, found)
            what = f"{reader} takes {found} for {pattern.name}, but elsewhere {pattern.name} is {known}"
            return None if known is found or _is_same(known, found) else (reader, what)
        if is_any(pattern) or (isinstance(found, fx.Node) and pattern.match(found)):
            return None
        return reader, f"{reader} takes {found}, expected {pattern}"

    def _call(self, pattern: Any, found: Any, reader: fx.Node) -> tuple[fx.Node, str] | None:
        expected = op_names(pattern)
        if not isinstance(found, fx.Node):
            return reader, f"{reader} takes {found!r}, expected the result of {expected}"
        if found.op != pattern.op or found.target not in pattern.fns_set:
            what = found.target if found.op == "call_function" else found.op
            return found, f"found {found} ({what}), expected {expected}"
        self.matched += 1
        if (
            pattern not in self._outputs
            and not is_multiple(pattern.users)
            and len(found.users) != pattern.users
        ):
            readers = ", ".join(str(user) for user in found.users)
            return found, f"{found} is used elsewhere: {readers} read it, the pattern has {pattern.users}"
        if len(found.args) != len(pattern.args):
            what = f"{found} has {len(found.args)} arguments, expected {len(pattern.args)}"
            return found, what
        for key, value in unnamed_arguments(pattern, found):
            return found, f"{found} has {key}={value!r}, but the pattern has no {key}"
        return self._arguments(pattern, found)

    def _arguments(self, pattern: Any, node: fx.Node) -> tuple[fx.Node, str] | None:
        pairs = _paired(pattern, node)
        if pairs is None:
            return node, f"{node} takes {node.args}, expected the form {pattern}"
        stops = (self.follow(part, value, node) for part, value in pairs)
        return next((stop for stop in stops if stop is not None), None)


def _paired(pattern: Any, node: fx.Node) -> list[tuple[Any, Any]] | None:
    """Pair the arguments of a pattern with those of a call; return None for another structure."""
    kwargs = {key: node.kwargs.get(key, _default(node.target, key)) for key in pattern.kwargs}
    given, form = pattern.flatten(node.args, kwargs)
    wanted, wanted_form = pattern.flatten(pattern.args, pattern.kwargs)
    return list(zip(wanted, given, strict=True)) if form == wanted_form else None


def _default(target: Any, name: str) -> Any:
    """Return the default of this argument of an op."""
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()
    found = [a for a in arguments if a.name == name and a.has_default_value()]
    return found[0].default_value if found else _MISSING


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    return bool(a == b)
