"""Trace the functions of a rule, reject wrong matches, and record the outcome in a graph.

torch's matcher searches for a pattern without its numbers, traces `find` again with the values of a match,
and compares exactly. In addition, a match is rejected

* if a call has keyword arguments that the pattern does not have, or constants that are equal but not
  the same,
* if its calls are on different streams, in different scopes or on two sides of an event,
* if a value that it takes is computed from one of its results, or a tensor stands for a number,
* if the replacement returns other results: another number of them, shape, dtype or device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadPass, first_line
from torchair.core.torch_private.compilers.pattern_matcher import (
    accepts_decompositions,
    exact_pattern,
    fwd_only,
    is_call,
)
from torchair.core.torch_private.fake.fake_tensors import statically_known_true, tree_leaves
from torchair.core.torch_private.fake.tracing import functionalized
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import mutates, written_by
from torchair.ops.streams.scope_analysis import PLACES
from torchair.passes.fx.cleanup.remove_noop_ops import remove_noop_ops
from torchair.passes.pass_manager import PassContext
from torchair.passes.patterns.spec.near_match import find_failure, unnamed_arguments, why_other_constants
from torchair.passes.patterns.spec.output_strides import stride_conflict
from torchair.passes.patterns.spec.user_pattern import NUMBERS

Function = Callable[..., Any]
Trace = Callable[..., fx.GraphModule]


def without_noops(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """Trace a function and remove no-ops, so that it looks like graphs when the patterns run."""
    gm = as_written(fn, args)
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    remove_noop_ops(gm, PassContext(inputs=inputs))
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def as_written(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """Trace like `fwd_only`, but decompose and remove nothing.

    Graphs contain no in-place writes when the patterns run, so writes of a function are made functional too.
    """
    how = {"get_decomp_fn": dict, "run_functional_passes": False}
    gm = fwd_only(fn, args, **how)
    writes = [node for node in gm.graph.nodes if mutates(node.target)]
    if writes and all(node.target.namespace == "aten" for node in writes):
        gm = fwd_only(torch.func.functionalize(fn, remove="mutations"), args, **how)
    elif writes:
        _check_writes(writes)
        gm = fwd_only(functionalized(fn), args, **how)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _check_writes(writes: Sequence[fx.Node]) -> None:
    for node in writes:
        for written in written_by(node):
            if written.op == "placeholder":
                raise BadPass(
                    f"{node.target} writes the argument {written} of a function of a replacement",
                    next="clone the argument, write the clone and return it: graphs contain no writes "
                    "when patterns are matched",
                )


def by_user(trace: Trace) -> Trace:
    """Wrap a user's tracer, which may not know of decompositions."""
    knows = accepts_decompositions(trace)

    def run(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
        return trace(fn, args, get_decomp_fn=dict) if knows else trace(fn, args)

    return run


def _how_to_fix(value: Any) -> str:
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype is torch.float64
    return "; set torch._dynamo.config.specialize_float to keep numbers in the graph" if is_number else ""


@dataclass(eq=False)
class Rule:
    """Define what to find and what replaces it; `why_not(match)` rejects a match.

    `patterns` are all forms of the pattern.
    """

    name: str
    find: Function
    put: Function
    why_not: Callable[[Any], str | None]
    scalars: dict[str, float] = field(default_factory=dict[str, float])
    names: tuple[str, ...] = ()  # of the values that it takes
    # for each value inside of them: whether it is a tensor; None: any value is accepted
    kinds: list[bool] | None = None
    pattern: Any = None  # an explicit pattern, instead of `find`
    is_of_user: bool = True
    at: str = ""  # where the user defined it
    patterns: list[Any] = field(default_factory=list[Any])


@dataclass
class MatchAttempts:
    """Record what a rule did in one graph: where it fired, and where it was rejected and why."""

    fired: int = 0
    found: int = 0  # matches before any check
    refused: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])


class MatchAttempt:
    """Trace both functions of a rule and check matches, for one entry of torch's matcher."""

    def __init__(self, rule: Rule, trace: Trace, ready: fx.GraphModule | None = None) -> None:
        self._rule = rule
        self._trace = trace
        self._ready = ready  # result of the first trace, if it was traced before
        self._seen: fx.GraphModule | None = None
        self._match: Any = None
        self._is_found = False
        self._why = ""

    def trace(self, fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
        """Trace a function for torch's matcher.

        torch traces `find` with the examples, then both functions with the values of a match. A
        `RuntimeError` of `find` means that there is no match.
        """
        if fn is self._rule.put:
            return self._trace(fn, args)
        if self._ready is not None:
            output, self._ready = self._ready, None
            return output
        if why := self._why_other_kinds(args):
            self._why = why
            raise RuntimeError(why)
        try:
            self._seen = self._trace(fn, args)
        except Exception as error:
            self._why = (
                f"the pattern cannot be traced with these values: {type(error).__name__}: {first_line(error)}"
            )
            raise RuntimeError(self._why) from error
        return self._seen

    def _why_other_kinds(self, args: Sequence[Any]) -> str | None:
        kinds = self._rule.kinds
        if kinds is None:
            return None
        leaves = tree_leaves(list(args))[-len(kinds) :]  # sizes may come before them
        if len(leaves) != len(kinds):
            return f"the pattern takes {len(kinds)} values, but {len(leaves)} were found"
        for leaf, is_tensor in zip(leaves, kinds, strict=True):
            if is_tensor and not isinstance(leaf, torch.Tensor):
                return f"a tensor of the pattern is {leaf!r} here"
            if not is_tensor and not isinstance(leaf, NUMBERS):
                return f"a number of the pattern is a tensor here{_how_to_fix(leaf)}"
        return None

    def check(self, match: Any) -> bool:
        """Check a match with its real values; torch calls this last."""
        # Sizes are calls of the exact pattern only.
        sized = {node for node in match.nodes if isinstance(node.meta.get("val"), torch.Tensor)}
        found = {node for node in self._match.nodes if isinstance(node.meta.get("val"), torch.Tensor)}
        self._is_found = sized == found
        why = None if self._is_found else "the pattern does not match with these values"
        why = why or _why_other_constants(match) or self._why_other_values(match) or self._rule.why_not(match)
        self._why = why or ""
        return why is None

    def _why_other_values(self, match: Any) -> str | None:
        """Return why real values do not fit an explicit pattern, which is not traced again."""
        names = self._rule.names if self._rule.pattern is not None else ()
        if not names or not all(name in match.kwargs for name in names):
            return None
        values = tree_leaves([match.kwargs[name] for name in names])
        return self._why_other_kinds([value_of(value) for value in values])

    def why_not(
        self, match: Any, tries: MatchAttempts, check: Callable[[Any], bool], captures: bool
    ) -> str | None:
        """Return the reason to reject a match of the pattern, or None; `check` is torch's own check."""
        self._match, self._seen, self._why, self._is_found = match, None, "", False
        why = _why_no_match(match)
        if why is None and not check(match):
            why = self._why or self._why_not_exactly(match)
        tries.found += self._is_found
        return (
            why
            or why_other_results(match)
            or why_not_in_order(match)
            or stride_conflict(match, captures=captures)
        )

    def _why_not_exactly(self, match: Any) -> str:
        node = match.output_nodes()[0]
        stop = None
        if self._seen is not None:
            stop = find_failure(exact_pattern(self._seen), node)
        return str(stop or "the pattern differs with these values")


# Why a match is rejected


def _calls_of(match: Any) -> list[tuple[Any, fx.Node]]:
    """Return the calls of the pattern with the nodes that match them."""
    found = match.ctx.pattern_to_node.items()
    return [(pattern, node) for pattern, node in found if is_call(pattern) and node is not None]


def _why_other_constants(match: Any) -> str | None:
    whys = (why_other_constants(pattern, node) for pattern, node in _calls_of(match))
    return next((why for why in whys if why is not None), None)


def _why_no_match(match: Any) -> str | None:
    for pattern, node in _calls_of(match):
        for key, value in unnamed_arguments(pattern, node):
            return f"{node} has {key}={value!r}, but the pattern has no {key}"
    return why_not_in_one_place(match) or _why_without_values(match)


TITLES = ("stream", "determinism", "core limits", "super kernel", "synchronizations before it")
NAMES = dict(zip(PLACES, TITLES, strict=True))


def why_not_in_one_place(match: Any) -> str | None:
    """Return why nodes on different streams, in different scopes or across an event are not fused."""
    calls = [node for node in match.nodes if node.op == "call_function"]
    for key, title in NAMES.items():
        places = {node.meta.get(key): node for node in calls}
        if len(places) > 1:
            (a, first), (b, second), *_ = places.items()
            return f"its calls differ in placement: {title} of {first} is {a!r}, of {second} {b!r}"
    return None


def _operands(match: Any) -> list[fx.Node]:
    """Return the nodes that match the parameters of a rule."""
    return [value for value in tree_leaves([match.args, match.kwargs]) if isinstance(value, fx.Node)]


def _why_without_values(match: Any) -> str | None:
    lacking = [node for node in _operands(match) if not node.meta.keys() & {"val", "example_value"}]
    return f"{lacking[0]} has no fake value (meta['val'])" if lacking else None


def why_other_results(match: Any) -> str | None:
    """Return how the results of the replacement differ from those it replaces, or None."""
    old = [node.meta.get("val") for node in match.output_nodes() if node is not None]
    new = [value_of(each) for each in returned(match.replacement_graph)]
    return why_differ(tree_leaves(old), new)


def returned(gm: fx.GraphModule) -> list[Any]:
    """Return the results of a traced function."""
    return tree_leaves(gm.graph.output_node().args[0])


def value_of(result: Any) -> Any:
    """Return the fake value of a result."""
    return result.meta.get("val") if isinstance(result, fx.Node) else result


def why_differ(old: Sequence[Any], new: Sequence[Any]) -> str | None:
    """Return how the results of two graphs differ, or None."""
    if len(old) != len(new):
        return f"the replacement returns {len(new)} values, but the pattern returns {len(old)}"
    for place, (a, b) in enumerate(zip(old, new, strict=True)):
        if isinstance(a, torch.Tensor) and not _is_like(a, b):
            return f"result {place} of the replacement is {shown(b)}, that of the pattern {shown(a)}"
    return None


def _is_like(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    return all(statically_known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))


def shown(value: Any) -> str:
    """Format a tensor briefly."""
    if not isinstance(value, torch.Tensor):
        return f"{value!r}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


# Position of the replacement


def why_not_in_order(match: Any) -> str | None:
    """Move the operands before the first result, where the replacement goes; return why not, or None."""
    outputs = [node for node in match.output_nodes() if node is not None]
    order = {node: place for place, node in enumerate(match.graph.nodes)} if len(outputs) > 1 else {}
    first = min(outputs, key=lambda node: order.get(node, 0))
    inside = set(match.nodes)
    if taken := next((node for node in _operands(match) if node in inside), None):
        return f"{taken}, an operand of the pattern, is one of its own results"
    late = _needed_after(match, first, order) if order else []
    for node in late:
        if reads := next((read for read in node.all_input_nodes if read in inside), None):
            return f"{node}, an operand of the pattern, is computed from {reads}, a result of the pattern"
        if not _is_movable(node, first):
            return f"{node}, an operand of the pattern, cannot be moved before {first}"
    for node in late:
        first.prepend(node)
    return None


def _needed_after(match: Any, first: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """Return the nodes that a match needs and that come after its first result, in order."""
    inside, seen = set(match.nodes), set[fx.Node]()
    rest = _operands(match)
    while rest:
        node = rest.pop()
        if node in seen or node in inside or order[node] < order[first]:
            continue
        seen.add(node)
        rest.extend(node.all_input_nodes)
    return sorted(seen, key=order.__getitem__)


def _is_movable(node: fx.Node, first: fx.Node) -> bool:
    is_pure = node.op == "call_function" and not node.is_impure()
    is_known = isinstance(node.target, OpOverload) or getattr(node.target, "__module__", "") == "_operator"
    same = all(node.meta.get(key) == first.meta.get(key) for key in PLACES)
    return is_pure and is_known and same and not mutates(node.target)
