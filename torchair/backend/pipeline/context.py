"""One compile under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.backend.pipeline.fallback import Fallbacks
from torchair.backend.service.scheduler import SwapGroup
from torchair.backend.settings.settings import Settings
from torchair.backend.specialize.size_buckets import Gears
from torchair.capture import Observer as Watcher
from torchair.convert.base.report import ConversionReport
from torchair.core.diagnostics import Diagnostics
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.debug.dumps.dump_plan import DumpPlan
from torchair.debug.observer.compile_observer import CompileObserver
from torchair.fxgraph.layout import Layout
from torchair.ge.graph import Graph
from torchair.passes import Tally
from torchair.passes.pass_manager import Observer


@dataclass
class Stage:
    """What every stage may ask about the graph."""

    settings: Settings
    inputs: list[Any]
    fake_mode: FakeTensorMode
    device: torch.device
    static: tuple[int, ...] = ()
    backward: bool = False
    is_inference: bool = True
    guarded: bool = False
    names: tuple[str, ...] = ()  # of the user's arguments
    name: str = ""
    calls: int = 0  # in the graph as it was given
    report: ConversionReport = field(default_factory=ConversionReport)
    ge_graph: Graph | None = None
    layouts: tuple[Layout | None, ...] = ()  # promised of the outputs
    detours: Fallbacks = field(default_factory=Fallbacks)
    is_raw: bool = False  # the graph looks at memory, not at tensors
    is_anchored: bool = False  # it counts from where storages of inputs begin
    watch: CompileObserver = field(default_factory=CompileObserver)
    tallies: dict[str, Tally] = field(default_factory=dict)  # how often passes found something
    observe: Observer | None = None  # sees the graph after each pass and stage
    plan: DumpPlan | None = None  # which ops of the IR are dumped, if any are
    observers: tuple[Watcher, ...] = ()  # of the runner
    gears: Gears | None = None  # the sizes it has programs of their own for
    serves_first: bool = False  # by the eager program, while a better one is built
    is_whole: bool = False  # ops are lowered as they are, and not taken apart for a compiler
    together: SwapGroup = field(default_factory=SwapGroup)  # whose better program is taken at the same time

    @property
    def degradations(self) -> Diagnostics:
        """Where to tell what is less than promised."""
        return self.detours.degradations

    def show(self, title: str, graph: Any) -> None:
        """Let who observes see a graph that no pass has made."""
        if self.observe is not None:
            self.observe(title, graph)

    @property
    def uses_ir(self) -> bool:
        """Graph mode goes through the IR, except where no way through it was found."""
        return not self.settings.captures and not self.detours.without_ir and not self.is_raw

    @property
    def interprets(self) -> bool:
        """The IR itself is run, op by op."""
        return self.uses_ir and (self.settings.codegen == "reference" or self.plan is not None)
