"""A replacement in a set: how its functions are traced, when a match of it is refused, and what became of it
in a graph.

torch's matcher looks for a pattern without its numbers, traces `find` again with the values of a match, and
compares exactly. Around that, a match is refused

* where a call has keyword arguments that the pattern does not have, or constants that are equal and not the
  same,
* where its calls are on different streams, in different scopes or on two sides of an event,
* where a value that it takes is made from one of its results, or a tensor stands for a number,
* where the replacement gives other results: another number of them, shape, dtype or device.
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
from torchair.passes.patterns.spec.near_match import stop_at, unnamed_arguments, why_other_constants
from torchair.passes.patterns.spec.output_strides import why_not_settled
from torchair.passes.patterns.spec.user_pattern import NUMBERS

Function = Callable[..., Any]
Trace = Callable[..., fx.GraphModule]


def without_noops(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """As our graphs are when the patterns run: what changes nothing is left out."""
    gm = as_written(fn, args)
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    remove_noop_ops(gm, PassContext(inputs=inputs))
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def as_written(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
    """As `fwd_only`, but nothing is taken apart, nor left out. Our graphs write nothing in place before the
    patterns run; what a function writes is made so too.
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
                    next="let it write a clone, and return that: graphs have nothing that is written when "
                    "patterns are looked for",
                )


def by_user(trace: Trace) -> Trace:
    """A tracer of the user's, that may not know of decompositions."""
    knows = accepts_decompositions(trace)

    def run(fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
        return trace(fn, args, get_decomp_fn=dict) if knows else trace(fn, args)

    return run


def _how_to_fix(value: Any) -> str:
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype is torch.float64
    return "; torch._dynamo.config.specialize_float keeps numbers in the graph" if is_number else ""


@dataclass(eq=False)
class Rule:
    """What to find and what to put; `why_not(match)` refuses a match. `patterns` are all its forms."""

    name: str
    find: Function
    put: Function
    why_not: Callable[[Any], str | None]
    scalars: dict[str, float] = field(default_factory=dict[str, float])
    names: tuple[str, ...] = ()  # of the values that it takes
    kinds: list[bool] | None = None  # of each inside of them: is it a tensor? None: anything goes
    pattern: Any = None  # given, instead of `find`
    is_of_user: bool = True
    at: str = ""  # where the user has written it
    patterns: list[Any] = field(default_factory=list[Any])


@dataclass
class Tries:
    """What became of a rule in one graph: where it fired, and where it was refused and why."""

    fired: int = 0
    found: int = 0  # matches, before somebody had a word on them
    refused: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])


class Trial:
    """Traces both functions of a rule and checks matches, for one entry of torch's matcher."""

    def __init__(self, rule: Rule, trace: Trace, ready: fx.GraphModule | None = None) -> None:
        self._rule = rule
        self._trace = trace
        self._ready = ready  # what the first trace makes, if it was made before
        self._seen: fx.GraphModule | None = None
        self._match: Any = None
        self._is_found = False
        self._why = ""

    def trace(self, fn: Function, args: Sequence[Any], **options: Any) -> fx.GraphModule:
        """For torch, which asks for `find` with the examples, then for both with the values of a match. It
        takes a `RuntimeError` of `find` for a match that is none.
        """
        if fn is self._rule.put:
            return self._trace(fn, args)
        if self._ready is not None:
            made, self._ready = self._ready, None
            return made
        if why := self._why_other_kinds(args):
            self._why = why
            raise RuntimeError(why)
        try:
            self._seen = self._trace(fn, args)
        except Exception as error:
            self._why = f"the pattern is not defined here: {type(error).__name__}: {first_line(error)}"
            raise RuntimeError(self._why) from error
        return self._seen

    def _why_other_kinds(self, args: Sequence[Any]) -> str | None:
        kinds = self._rule.kinds
        if kinds is None:
            return None
        leaves = tree_leaves(list(args))[-len(kinds) :]  # sizes may stand before them
        if len(leaves) != len(kinds):
            return f"the pattern takes {len(kinds)} values, and has {len(leaves)} here"
        for leaf, is_tensor in zip(leaves, kinds, strict=True):
            if is_tensor and not isinstance(leaf, torch.Tensor):
                return f"a tensor of the pattern is {leaf!r} here"
            if not is_tensor and not isinstance(leaf, NUMBERS):
                return f"a number of the pattern is a tensor here{_how_to_fix(leaf)}"
        return None

    def check(self, match: Any) -> bool:
        """For torch: the last word on a match with its true values."""
        # Sizes are calls of the exact pattern alone.
        sized = {node for node in match.nodes if isinstance(node.meta.get("val"), torch.Tensor)}
        found = {node for node in self._match.nodes if isinstance(node.meta.get("val"), torch.Tensor)}
        self._is_found = sized == found
        why = None if self._is_found else "with its values it is found elsewhere"
        why = why or _why_other_constants(match) or self._why_other_values(match) or self._rule.why_not(match)
        self._why = why or ""
        return why is None

    def _why_other_values(self, match: Any) -> str | None:
        """A pattern that was given is not traced with the values of a match."""
        names = self._rule.names if self._rule.pattern is not None else ()
        if not names or not all(name in match.kwargs for name in names):
            return None
        values = tree_leaves([match.kwargs[name] for name in names])
        return self._why_other_kinds([value_of(value) for value in values])

    def why_not(self, match: Any, tries: Tries, check: Callable[[Any], bool], captures: bool) -> str | None:
        """The reason to leave a match of the pattern alone, or None; `check` is torch's."""
        self._match, self._seen, self._why, self._is_found = match, None, "", False
        why = _why_no_match(match)
        if why is None and not check(match):
            why = self._why or self._why_not_exactly(match)
        tries.found += self._is_found
        return (
            why
            or why_other_results(match)
            or why_not_in_order(match)
            or why_not_settled(match, captures=captures)
        )

    def _why_not_exactly(self, match: Any) -> str:
        node = match.output_nodes()[0]
        stop = None
        if self._seen is not None:
            stop = stop_at(exact_pattern(self._seen), node)
        return str(stop or "with its values it is another pattern")


# Why a match is none


def _calls_of(match: Any) -> list[tuple[Any, fx.Node]]:
    """The calls of the pattern, and what stands for them."""
    found = match.ctx.pattern_to_node.items()
    return [(pattern, node) for pattern, node in found if is_call(pattern) and node is not None]


def _why_other_constants(match: Any) -> str | None:
    whys = (why_other_constants(pattern, node) for pattern, node in _calls_of(match))
    return next((why for why in whys if why is not None), None)


def _why_no_match(match: Any) -> str | None:
    for pattern, node in _calls_of(match):
        for key, value in unnamed_arguments(pattern, node):
            return f"{node} has {key}={value!r}, and the pattern has no {key}"
    return why_not_in_one_place(match) or _why_without_values(match)


TITLES = ("stream", "determinism", "core limits", "super kernel", "synchronisations before it")
NAMES = dict(zip(PLACES, TITLES, strict=True))


def why_not_in_one_place(match: Any) -> str | None:
    """Nodes on different streams, in different scopes or on two sides of an event are never fused."""
    calls = [node for node in match.nodes if node.op == "call_function"]
    for key, title in NAMES.items():
        places = {node.meta.get(key): node for node in calls}
        if len(places) > 1:
            (a, first), (b, second), *_ = places.items()
            return f"its calls are not in one place: {title} of {first} is {a!r}, of {second} {b!r}"
    return None


def _taken(match: Any) -> list[fx.Node]:
    """The nodes that stand for the parameters of a rule."""
    return [value for value in tree_leaves([match.args, match.kwargs]) if isinstance(value, fx.Node)]


def _why_without_values(match: Any) -> str | None:
    lacking = [node for node in _taken(match) if not node.meta.keys() & {"val", "example_value"}]
    return f"{lacking[0]} has no fake value (meta['val'])" if lacking else None


def why_other_results(match: Any) -> str | None:
    """A replacement must give what it replaces."""
    old = [node.meta.get("val") for node in match.output_nodes() if node is not None]
    new = [value_of(each) for each in returned(match.replacement_graph)]
    return why_differ(tree_leaves(old), new)


def returned(gm: fx.GraphModule) -> list[Any]:
    """What a traced function returns."""
    return tree_leaves(gm.graph.output_node().args[0])


def value_of(result: Any) -> Any:
    """Its fake value."""
    return result.meta.get("val") if isinstance(result, fx.Node) else result


def why_differ(old: Sequence[Any], new: Sequence[Any]) -> str | None:
    """How the results of two graphs differ, or None."""
    if len(old) != len(new):
        return f"the replacement returns {len(new)} values, the pattern {len(old)}"
    for place, (a, b) in enumerate(zip(old, new, strict=True)):
        if isinstance(a, torch.Tensor) and not _is_like(a, b):
            return f"result {place} of the replacement is {shown(b)}, that of the pattern {shown(a)}"
    return None


def _is_like(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    return all(statically_known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))


def shown(value: Any) -> str:
    """A tensor in short."""
    if not isinstance(value, torch.Tensor):
        return f"{value!r}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


# The place of the replacement


def why_not_in_order(match: Any) -> str | None:
    """The replacement stands before the first result: what it takes is moved there, or why it cannot be."""
    outputs = [node for node in match.output_nodes() if node is not None]
    order = {node: place for place, node in enumerate(match.graph.nodes)} if len(outputs) > 1 else {}
    first = min(outputs, key=lambda node: order.get(node, 0))
    inside = set(match.nodes)
    if taken := next((node for node in _taken(match) if node in inside), None):
        return f"{taken}, which the pattern takes, is one of its own results"
    late = _behind(match, first, order) if order else []
    for node in late:
        if reads := next((read for read in node.all_input_nodes if read in inside), None):
            return f"{node}, which the pattern takes, is made from {reads}, which the pattern makes"
        if not _is_movable(node, first):
            return f"{node}, which the pattern takes, cannot be moved before {first}"
    for node in late:
        first.prepend(node)
    return None


def _behind(match: Any, first: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """What is needed for a match and stands behind its first result, in order."""
    inside, seen = set(match.nodes), set[fx.Node]()
    rest = _taken(match)
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
