"""Run the work around every pass: flags, checks, counts, timing, the observer. Passes do none of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchair.configs.pass_switches import PassSwitches
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadPass, first_line, is_of_user
from torchair.core.log import capture_logger, logger
from torchair.passes.graph_diff import GraphSummary, NodeSummary, comparison, graph_summary

Pass = Callable[[Any, "PassContext"], int]
Observer = Callable[[str, Any], None]


@dataclass(frozen=True)
class Step:
    """Describe one entry of a list of passes.

    Attributes:
        on: Flag that must be set for the pass to run.
        unless: Flag that must not be set.
        after: Passes that must come before it.
        quiet: Show the pass to the observer only when it changed something.
        fusion: Omit the pass at level O1.
        mandatory: Later stages rely on the pass: its name cannot disable it.
        completes: Passes that have no effect without this one.
    """

    fn: Pass
    on: str = ""
    unless: str = ""
    after: tuple[Pass, ...] = ()
    name: str = ""
    quiet: bool = False
    fusion: bool = False
    mandatory: bool = False
    completes: tuple[Pass, ...] = ()

    @property
    def title(self) -> str:
        """Return the debug name, which is also the suffix of dump files."""
        return self.name or self.fn.__name__


@dataclass(frozen=True)
class Skip:
    """Record a place where a pass could have acted and did not."""

    step: str
    node: str
    reason: str


@dataclass
class Tally:
    """Count how often a pass or a fusion found something, and how often it changed it."""

    matches: int = 0
    effects: int = 0


@dataclass
class PassContext:
    """Give passes access to flags, the user's functions and fake inputs, and collect skips."""

    switches: dict[str, bool] = field(default_factory=dict[str, bool])
    without: Collection[str] = ()  # titles of passes that have failed on this graph
    named: PassSwitches = field(default_factory=PassSwitches)  # per-pass switches of the user, by name
    order: str = ""  # how the ops of the IR are sorted
    # scope attributes of ops without an explicit scope
    scope: Mapping[str, str] = field(default_factory=dict[str, str])
    compute: Callable[..., list[Any]] | None = None  # (op, values of its inputs) -> values of its outputs
    inputs: Sequence[Any] = ()
    user_pre_pass: Callable[..., Any] | None = None
    user_post_pass: Callable[..., Any] | None = None
    config: Any = None
    observe: Observer | None = None
    verify: Callable[[Any], None] | None = None
    skips: list[Skip] = field(default_factory=list["Skip"])
    changes: dict[str, int] = field(default_factory=dict[str, int])
    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])
    current: str = ""
    explains: bool = False  # a reader wants to know why replacements did not fire
    rules: list[Any] = field(default_factory=list[Any])  # outcomes of the user's replacements
    degradations: Diagnostics = field(default_factory=Diagnostics)
    # The graph in the pass log, and its content before the first pass.
    seen: Any = None
    first: GraphSummary = field(default_factory=dict[str, NodeSummary])

    def skip(self, node: object, reason: str) -> None:
        """Record that the current pass did not change `node`, and why."""
        self.skips.append(Skip(self.current, str(node), reason))

    def tally(self, name: str, *, matches: int, effects: int) -> None:
        """Count matches and effects of a pass, or of a fusion that is part of one."""
        found = self.tallies.setdefault(name, Tally())
        found.matches += matches
        found.effects += effects

    def runs(self, step: Step) -> bool:
        """Return whether this step is enabled."""
        if step.on and not self.switches.get(step.on, True):
            return False
        if step.unless and self.switches.get(step.unless, False):
            return False
        if step.title in self.without:
            return False
        return step.mandatory or self.named.asked(step.title, fusion=step.fusion)


class PassFailed(BadPass):
    """A built-in pass raised or left an invalid graph.

    The graph is unusable; it can be rebuilt without this pass and the passes that it completes.
    """

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(
            f"the pass {step.title} failed: {type(error).__name__}: {first_line(error)}",
            next="disable the pass by its name, or report the bug: a pass must leave a valid graph",
        )
        self.title = step.title
        self.titles = (step.title, *(other.__name__ for other in step.completes))


def steps(*listed: Step) -> tuple[Step, ...]:
    """Check at import that the passes a step requires come before it; return the list."""
    seen: set[Pass] = set()
    for step in listed:
        missing = [other.__name__ for other in step.after if other not in seen]
        assert not missing, f"{step.title} must come after {missing}"
        seen.add(step.fn)
    return listed


def run(listed: Sequence[Step], graph: Any, context: PassContext) -> Any:
    """Run the steps in order on a graph (FX or GE), which is changed in place."""
    log = PassLog(context, graph)
    for step in listed:
        if not context.runs(step):
            continue
        context.current = step.title
        began, skipped = time.perf_counter(), len(context.skips)
        try:
            changed = step.fn(graph, context)
            if context.verify is not None:
                context.verify(graph)
        except Exception as error:
            if is_of_user(error):
                raise
            raise PassFailed(step, error) from error
        context.changes[step.title] = context.changes.get(step.title, 0) + changed
        left = len(context.skips) - skipped
        context.tally(step.title, matches=changed + left, effects=changed)
        log.passed(step.title, changed, time.perf_counter() - began)
        if context.observe is not None and (changed or not step.quiet):
            context.observe(step.title, graph)
    log.ended()
    return graph


class PassLog:
    """Log at DEBUG each pass of a list and the overall change of the graph."""

    def __init__(self, context: PassContext, graph: Any) -> None:
        self._log = capture_logger if context.switches.get("captures", False) else logger
        self._is_on = self._log.isEnabledFor(logging.DEBUG)
        self._graph = graph
        self._before = graph_summary(graph) if self._is_on else {}
        if self._is_on and context.seen is not graph:
            context.seen, context.first = graph, self._before
        self._first = context.first

    def passed(self, title: str, changed: int, seconds: float) -> None:
        """Log the end of one pass."""
        if not self._is_on:
            return
        before, self._before = self._before, graph_summary(self._graph)
        text = comparison(before, self._before)
        self._log.debug("pass %s: %d changes in %.1f ms, %s", title, changed, seconds * 1e3, text)

    def ended(self) -> None:
        """Log the end of all passes."""
        if self._is_on:
            self._log.debug("all passes so far: %s", comparison(self._first, self._before))
