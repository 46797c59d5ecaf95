"""Hold the state of a conversion, and undo parts of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair.convert.base.report import ConversionReport
from torchair.convert.base.scopes import Schedule
from torchair.ge.attr import Attr
from torchair.ge.graph import Graph, Tensor


@dataclass
class ConversionState:
    """Hold the state of a conversion."""

    graph: Graph
    fake_mode: Any
    fold_views: bool
    report: ConversionReport = field(default_factory=ConversionReport)
    placeholders: list[fx.Node] = field(default_factory=list)
    views: dict[Any, Tensor] = field(default_factory=dict)
    # The sub-graphs of the main graph, shared by all conversions; and whether this one builds a sub-graph.
    parts: dict[str, Graph] = field(default_factory=dict)
    is_part: bool = False
    # Nodes that become opaque ops, by name, with the reason: the result of their conversion failed later.
    opaque: Mapping[str, str] = field(default_factory=dict)
    # The node of the graph itself that is being converted, also while it is decomposed.
    top: str = ""
    # The device on which the graph runs.
    home: torch.device = field(default_factory=lambda: torch.device("cpu"))
    # The order of ops by scopes and events.
    schedule: Schedule = field(default_factory=Schedule)
    # The ops that the report counts as converted, in order.
    converted: list[str] = field(default_factory=list)

    def count(self, name: str) -> None:
        """Count one converted op."""
        self.converted.append(name)
        self.report.converted[name] += 1

    def mark(self) -> Checkpoint:
        """Save the state of the conversion."""
        graph, report = self.graph, self.report
        return Checkpoint(
            len(graph.ops),
            len(self.views),
            len(self.parts),
            list(graph.scopes),
            len(self.converted),
            (len(report.decomposed), len(report.fallbacks)),
        )

    def rollback(self, mark: Checkpoint) -> None:
        """Undo everything built since the mark: ops, views of them, sub-graphs, report entries."""
        self.graph.rollback(mark.ops)
        while len(self.views) > mark.views:
            self.views.popitem()
        self.graph.scopes[:] = mark.scopes
        while len(self.parts) > mark.parts:
            self.parts.popitem()
        self.report.converted -= Counter(self.converted[mark.converted :])
        del self.converted[mark.converted :]
        del self.report.decomposed[mark.reported[0] :], self.report.fallbacks[mark.reported[1] :]


@dataclass(frozen=True)
class Checkpoint:
    """A saved state of a conversion."""

    ops: int
    views: int
    parts: int
    scopes: list[dict[str, Attr | None]]
    converted: int
    reported: tuple[int, int]
