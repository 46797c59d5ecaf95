"""Determine which numbers of a traced pattern stand for any number.

torch's matcher identifies a wildcard by its value: each number of the trace that equals its example is one.
In `x.pow(2) * n` with 2 for n, the exponent would be one too. So a pattern is traced with a second number:
the wildcard is where both traces have theirs. The number that appears nowhere else is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from torchair.core.errors import BadPass
from torchair.core.torch_private.fake.fake_tensors import disable_modes, tree_flatten
from torchair.passes.patterns.match.rule import Trace
from torchair.passes.patterns.match.variants import traced
from torchair.passes.patterns.spec.user_pattern import UserPattern, examples_like


@dataclass(frozen=True)
class Constants:
    """Hold the constants of a traced graph, in order; graphs of one `form` have equally many."""

    form: tuple[Any, ...]
    values: list[Any]

    def equal(self, number: float) -> list[bool]:
        """Return, for each constant, whether torch's matcher would match it with this number."""
        return [isinstance(each, int | float) and each == number for each in self.values]


def disambiguate(given: UserPattern, trace: Trace) -> UserPattern:
    """Return the rule with an example for each wildcard that is unique in the pattern; raise if there is
    none.
    """
    with disable_modes():
        for name in given.scalars:
            given = _with_own_number(given, name, trace)
    return given


def has_wildcards(given: UserPattern, gm: fx.GraphModule) -> bool:
    """Return whether each wildcard occurs in this form of the pattern."""
    found = _constants(gm)
    return all(any(found.equal(number)) for number in given.scalars.values())


def _with_own_number(given: UserPattern, name: str, trace: Trace) -> UserPattern:
    value, old = given.scalars[name], _traced_constants(given, trace, must=True)
    assert old is not None, "a required trace returns a graph or raises"
    uses: list[list[bool]] = []
    for other in _others(value):
        changed = replace(given, scalars={**given.scalars, name: other})
        new = _traced_constants(changed, trace, must=False)
        if new is None or new.form != old.form:
            continue
        own = [a and b for a, b in zip(old.equal(value), new.equal(other), strict=True)]
        if any(own) and own == old.equal(value):
            return given
        if any(own) and own == new.equal(other):
            return changed
        uses.append(own)
    if not uses and sum(old.equal(value)) == 1:  # it is defined for this number only
        return given
    raise _not_told(given, name, is_used=any(map(any, uses)) or (not uses and any(old.equal(value))))


def _not_told(given: UserPattern, name: str, is_used: bool) -> BadPass:
    if not is_used:
        return BadPass(
            f"search_fn {given.name} does not use {name}",
            next="remove the parameter: a match determines its value only if a call uses it unchanged",
        )
    return BadPass(
        f"the number {name} of the pattern {given.name} cannot be told from other numbers of the pattern",
        got=f"{name} = {given.scalars[name]!r}",
        next="choose an example that equals no other number, dim or flag of the pattern (0 and 1 are "
        "flags, too)",
    )


def _others(value: float) -> Iterator[float]:
    """Yield numbers of the same type, unlikely ones first; then those that may be a dim or a size."""
    if isinstance(value, int):
        steps = (97, -97, 1, -1, 2, -2, -2 * value - 1, -2 * value)
        yield from (value + step for step in steps if step)
        return
    near = (value * (1 - 2**-20), value * (1 + 2**-20)) if value else (2.0**-20, -(2.0**-20))
    yield from (each for each in (*near, 0.37, -0.37, 7.3) if math.isfinite(each) and each != value)


def _traced_constants(given: UserPattern, trace: Trace, must: bool) -> Constants | None:
    gm = traced(given, trace, examples_like(given.inputs), must)
    return None if gm is None else _constants(gm)


def _constants(gm: fx.GraphModule) -> Constants:
    form: list[Any] = []
    values: list[Any] = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        leaves, spec = tree_flatten((node.args, node.kwargs))
        read = [leaf.name if isinstance(leaf, fx.Node) else None for leaf in leaves]
        form.append((node.op, node.target, spec, read))
        values.extend(leaf for leaf in leaves if not isinstance(leaf, fx.Node))
    return Constants(tuple(form), values)
