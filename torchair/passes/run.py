"""What happens around every pass: switches, checks, counts, time, the observer. Passes themselves know none
of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchair.core.degraded import Degradations
from torchair.core.errors import BadPass, first_line, is_of_user
from torchair.core.log import capture_logger, logger
from torchair.passes.census import Census, Member, census, comparison

Pass = Callable[[Any, "PassContext"], int]
Observer = Callable[[str, Any], None]


@dataclass(frozen=True)
class Step:
    """One entry of a list of passes. `on` and `unless` name switches; `after` names passes that must stand
    before it. A `quiet` step is shown to the observer only when it changed something.
    """

    fn: Pass
    on: str = ""
    unless: str = ""
    after: tuple[Pass, ...] = ()
    name: str = ""
    quiet: bool = False

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
class PassContext:
    """What passes may ask for: switches, the user's functions, the fake inputs; and where they say why they
    declined.
    """

    switches: dict[str, bool] = field(default_factory=dict[str, bool])
    without: Collection[str] = ()  # titles of passes that have failed on this graph
    inputs: Sequence[Any] = ()
    user_pre_pass: Callable[..., Any] | None = None
    user_post_pass: Callable[..., Any] | None = None
    config: Any = None
    observe: Observer | None = None
    verify: Callable[[Any], None] | None = None
    skips: list[Skip] = field(default_factory=list["Skip"])
    changes: dict[str, int] = field(default_factory=dict[str, int])
    current: str = ""
    degradations: Degradations = field(default_factory=Degradations)
    # The graph that passes are told about, and what was in it before the first of them.
    seen: Any = None
    first: Census = field(default_factory=dict[str, Member])

    def skip(self, node: object, reason: str) -> None:
        """Say that the current pass left `node` alone, and why."""
        self.skips.append(Skip(self.current, str(node), reason))

    def show(self, title: str, graph: Any) -> None:
        """Let the observer see a graph that no pass has made: a stage of the compile."""
        if self.observe is not None:
            self.observe(title, graph)


class PassFailed(BadPass):
    """One of our own passes raised, or left a graph that is not valid: the graph is spoilt, and can be made
    again without that pass.
    """

    def __init__(self, title: str, error: Exception) -> None:
        super().__init__(
            f"the pass {title} failed: {type(error).__name__}: {first_line(error)}",
            next="switch the pass off, or mend it: a pass must leave a valid graph",
        )
        self.title = title


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
        if step.on and not context.switches.get(step.on, True):
            continue
        if step.unless and context.switches.get(step.unless, False):
            continue
        if step.title in context.without:
            continue
        context.current = step.title
        began = time.perf_counter()
        try:
            changed = step.fn(graph, context)
            if context.verify is not None:
                context.verify(graph)
        except Exception as error:
            if is_of_user(error):
                raise
            raise PassFailed(step.title, error) from error
        context.changes[step.title] = context.changes.get(step.title, 0) + changed
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
