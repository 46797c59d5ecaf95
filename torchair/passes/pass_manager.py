"""What happens around every pass: switches, checks, counts, time, the observer. Passes themselves know none
of it.
"""

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
from torchair.passes.graph_diff import Census, Member, census, comparison

Pass = Callable[[Any, "PassContext"], int]
Observer = Callable[[str, Any], None]


@dataclass(frozen=True)
class Step:
    """One entry of a list of passes. `on` and `unless` name switches; `after` names passes that must stand
    before it. A `quiet` step is shown to the observer only when it changed something. A `fusion` is left out
    at level O1; a `mandatory` step is one that later stages count on: nobody can switch it off by its name.
    Passes that a step `completes` are nothing without it.
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
        """The debug name, which is also the suffix of dump files."""
        return self.name or self.fn.__name__


@dataclass(frozen=True)
class Skip:
    """A place where a pass could have acted and did not."""

    step: str
    node: str
    reason: str


@dataclass
class Tally:
    """How often a pass or a fusion found something, and how often it changed it."""

    matches: int = 0
    effects: int = 0


@dataclass
class PassContext:
    """What passes may ask for: switches, the user's functions, the fake inputs; and where they say why they
    declined.
    """

    switches: dict[str, bool] = field(default_factory=dict[str, bool])
    without: Collection[str] = ()  # titles of passes that have failed on this graph
    named: PassSwitches = field(default_factory=PassSwitches)  # what the user asked for passes, by name
    order: str = ""  # how the ops of the IR are sorted
    scope: Mapping[str, str] = field(default_factory=dict[str, str])  # of ops that no scope says more about
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
    explains: bool = False  # somebody reads why replacements did not fire
    rules: list[Any] = field(default_factory=list[Any])  # what became of the user's replacements
    degradations: Diagnostics = field(default_factory=Diagnostics)
    # The graph that passes are told about, and what was in it before the first of them.
    seen: Any = None
    first: Census = field(default_factory=dict[str, Member])

    def skip(self, node: object, reason: str) -> None:
        """Say that the current pass left `node` alone, and why."""
        self.skips.append(Skip(self.current, str(node), reason))

    def tally(self, name: str, *, matches: int, effects: int) -> None:
        """Count for a pass, or for a fusion that is a part of one."""
        found = self.tallies.setdefault(name, Tally())
        found.matches += matches
        found.effects += effects

    def runs(self, step: Step) -> bool:
        """Is this step wanted?"""
        if step.on and not self.switches.get(step.on, True):
            return False
        if step.unless and self.switches.get(step.unless, False):
            return False
        if step.title in self.without:
            return False
        return step.mandatory or self.named.asked(step.title, fusion=step.fusion)


class PassFailed(BadPass):
    """One of our own passes raised, or left a graph that is not valid: the graph is spoilt, and can be made
    again without that pass and those that it completes.
    """

    def __init__(self, step: Step, error: Exception) -> None:
        super().__init__(
            f"the pass {step.title} failed: {type(error).__name__}: {first_line(error)}",
            next="switch the pass off, or mend it: a pass must leave a valid graph",
        )
        self.title = step.title
        self.titles = (step.title, *(other.__name__ for other in step.completes))


def steps(*listed: Step) -> tuple[Step, ...]:
    """A list of passes, checked at import: whatever a step wants before it is there."""
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
    """What is said at DEBUG about each pass of a list, and about all that the graph went through."""

    def __init__(self, context: PassContext, graph: Any) -> None:
        self._log = capture_logger if context.switches.get("captures", False) else logger
        self._is_on = self._log.isEnabledFor(logging.DEBUG)
        self._graph = graph
        self._before = census(graph) if self._is_on else {}
        if self._is_on and context.seen is not graph:
            context.seen, context.first = graph, self._before
        self._first = context.first

    def passed(self, title: str, changed: int, seconds: float) -> None:
        """One pass is over."""
        if not self._is_on:
            return
        before, self._before = self._before, census(self._graph)
        text = comparison(before, self._before)
        self._log.debug("pass %s: %d changes in %.1f ms, %s", title, changed, seconds * 1e3, text)

    def ended(self) -> None:
        """All are over."""
        if self._is_on:
            self._log.debug("all passes so far: %s", comparison(self._first, self._before))
