"""Describe the outcome of each user rule in a graph as text."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from torchair.configs.pass_switches import PassSwitches
from torchair.core.log import capture_logger, logger
from torchair.core.source_location import source_of
from torchair.core.torch_private.compilers.pattern_matcher import is_keyword, outputs_of, values_in
from torchair.passes.pass_manager import PassContext
from torchair.passes.patterns.match.rule import MatchAttempts, Rule
from torchair.passes.patterns.spec.near_match import attempts, op_names

SKIPPED_BY_MATCHER = (
    "it matches, but torch's matcher skips it: something between its parts is written, or a value is complex"
)
ALREADY_REPLACED = "other rules have replaced what it looks for"
ONLY_IN_REPLACEMENT = f"{ALREADY_REPLACED}; it matches their replacement, which is not searched again"
JOINT_TRACE = "its trace_fn traces forward and backward together, but graphs are searched separately"


@dataclass(frozen=True)
class Outcome:
    """How often a rule fired in a graph, why it did not fire elsewhere, and at which line of the model."""

    rule: str
    defined: str
    fired: int
    why: str = ""
    at: str = ""

    def __str__(self) -> str:
        times = "once" if self.fired == 1 else f"{self.fired} times"
        head = f"fired {times}" if self.fired else "did not fire"
        return f"{head}: {self.why}" if self.why else head


def why_off(rule: str, whole: str, named: PassSwitches) -> str | None:
    """Return the switch that disables a rule, or None."""
    if named.asked(rule if rule in named.named else whole, fusion=True):
        return None
    if rule in named.named or whole in named.named:
        return f"switched off by name ({rule if rule in named.named else whole}:off)"
    return "switched off with all fusions (ge_config.oo_level or a file of switches)"


def outcomes_of(
    tried: Sequence[tuple[Rule, MatchAttempts]],
    graphs: Sequence[fx.Graph],
    before: Collection[fx.Node],
    ctx: PassContext,
    whole: str,
) -> list[Outcome]:
    """Return the outcome of each user rule; `before` are the nodes from before the first rule fired."""
    found: list[Outcome] = []
    for rule, tries in tried:
        off = why_off(rule.name, whole, ctx.named)
        why, at = (off, "") if off else _why(rule, tries, graphs, before)
        found.append(Outcome(rule.name, rule.at, tries.fired, why, at))
    return found


def _why(
    rule: Rule, tries: MatchAttempts, graphs: Sequence[fx.Graph], before: Collection[fx.Node]
) -> tuple[str, str]:
    if tries.refused:
        (why, times), *_ = Counter(tries.refused.values()).most_common(1)
        node = next(node for node, text in tries.refused.items() if text == why)
        more = len(tries.refused) - times
        others = f" ({times} times)" * (times > 1) + f"; rejected at {more} other places" * (more > 0)
        return f"{why}{others}", source_of(node)
    if tries.fired:
        return "", ""
    if any(is_keyword(each) and each.name.startswith("tangents_") for each in values_in(rule.patterns[0])):
        return JOINT_TRACE, ""
    return _why_not_found(rule, graphs, before)


def _why_not_found(rule: Rule, graphs: Sequence[fx.Graph], before: Collection[fx.Node]) -> tuple[str, str]:
    found = [each for graph in graphs for pattern in rule.patterns for each in attempts(pattern, graph)]
    fits = [node for node, stop in found if stop is None]
    if any(node in before for node in fits):
        return SKIPPED_BY_MATCHER, ""
    if fits:
        return ONLY_IN_REPLACEMENT, source_of(fits[0])
    stops = [stop for _, stop in found if stop is not None]
    if stops:
        best = max(stops, key=lambda stop: (stop.matched / stop.of, stop.matched))
        return str(best), best.source
    last = outputs_of(rule.patterns[0])[0]
    if set(last.fns) & {node.target for node in before}:
        return ALREADY_REPLACED, ""
    return f"the graph has no {op_names(last)}, with which the pattern ends", ""


def log_unfired(found: Sequence[Outcome], ctx: PassContext) -> None:
    """Log one line for each rule that did not fire."""
    log = log_of(ctx)
    for outcome in found:
        if not outcome.fired:
            at = f" ({outcome.at})" if outcome.at else ""
            log.info("the replacement %s (%s) %s%s", outcome.rule, outcome.defined, outcome, at)


def has_reason_readers(ctx: PassContext) -> bool:
    """Return whether the reasons are read; computing them takes time."""
    return ctx.explains or log_of(ctx).isEnabledFor(logging.INFO)


def log_of(ctx: PassContext) -> Any:
    """Return the logger of the mode."""
    return capture_logger if ctx.switches.get("captures", False) else logger
