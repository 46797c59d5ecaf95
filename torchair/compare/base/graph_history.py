"""Keep the graphs of one compile as they were after each stage, as an observer of `compile_fx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from torchair.compare.base.replay_call import RecordedCall, run_fx
from torchair.engine.interpret import interpret
from torchair.fxgraph.edit import copy_graph as copy_fx
from torchair.ge.graph import Graph
from torchair.ge.graph import copy_graph as copy_ge
from torchair.ge.proto.equality import same_graph

TRACE, FX_PASS, CONVERSION, GE_PASS, LOWERING = "trace", "FX pass", "conversion", "GE pass", "lowering"
COMPILED, REPLAYED = "compiled", "replayed"
"""The kinds of stages. A pass over the lowered graph is an FX pass."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A graph after one stage."""

    kind: str
    title: str
    graph: fx.GraphModule | Graph

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.kind} {self.title}" if self.kind in (FX_PASS, GE_PASS) else self.title

    def run(self, recorded: RecordedCall) -> Any:
        """Run the graph with the arguments of a recorded call and return the outcome."""
        graph = self.graph
        if isinstance(graph, Graph):
            return recorded.run(lambda args: interpret(graph, args, recorded.device))
        return recorded.run(run_fx(graph))


TITLES = {
    "given": (TRACE, "traced by AOTAutograd"),
    "convert": (CONVERSION, "IR, by the reference engine"),
    "lower": (LOWERING, "lowered to ATen, op by op"),
}


@dataclass
class GraphHistory:
    """The stages of the last attempt to compile one graph; a pass without changes adds no stage."""

    steps: list[Snapshot] = field(default_factory=list[Snapshot])
    is_closed: bool = False
    unchanged: int = 0  # passes

    def __call__(self, title: str, graph: Any) -> None:
        if self.is_closed:
            return
        if title == "given":
            self.steps.clear()
            self.unchanged = 0
        copied = copy_ge(graph) if isinstance(graph, Graph) else copy_fx(graph)
        if title in TITLES:
            self.steps.append(Snapshot(*TITLES[title], copied))
        elif _is_same(self.steps[-1].graph, copied):
            self.unchanged += 1
        else:
            self.steps.append(Snapshot(GE_PASS if isinstance(graph, Graph) else FX_PASS, title, copied))

    def last(self, kind: type[Any]) -> Any:
        """Return the last graph of this class, or None."""
        return next((step.graph for step in reversed(self.steps) if isinstance(step.graph, kind)), None)

    def before(self, step: Snapshot) -> Snapshot:
        """Return the stage before the given one."""
        return self.steps[self.steps.index(step) - 1]

    @property
    def given(self) -> fx.GraphModule:
        """The graph that the compile started from."""
        graph = self.steps[0].graph
        assert isinstance(graph, fx.GraphModule), "a compile begins with an FX graph"
        return graph

    def has(self, kind: str) -> bool:
        """Return whether the compile had a stage of this kind."""
        return any(step.kind == kind for step in self.steps)


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Graph) and isinstance(b, Graph):
        return same_graph(a, b, descriptors=False) is None
    return isinstance(a, fx.GraphModule) and isinstance(b, fx.GraphModule) and str(a.graph) == str(b.graph)
