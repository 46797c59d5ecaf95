"""What every step of one compile is given (request, facts, plan, two sinks), and what the large steps return.

A `Context` is immutable. Steps return results; they write to `Fallbacks` (what earlier attempts had to leave
out, and the warnings) and to the `CompileObserver` (debug files) only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from torch import fx

from torchair.backend.service.scheduler import SwapGroup
from torchair.backend.settings.settings import Settings
from torchair.backend.specialize.size_buckets import Gears
from torchair.capture import Specialist
from torchair.convert.base.report import ConversionReport, Reason
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType, BadPath, first_line
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.debug.dumps.dump_plan import DumpPlan
from torchair.debug.observer.compile_observer import CompileObserver
from torchair.debug.observer.debug_dir import PhaseFiles
from torchair.engine.lower import KernelFailed
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph
from torchair.passes import PassContext, Tally
from torchair.passes.pass_manager import Observer, PassFailed


@dataclass
class Fallbacks:
    """What this compile leaves out because it failed: passes, nodes, the IR as a whole.

    A step that fails leaves a graph that cannot be trusted. So the next attempt starts from the graph as it
    was given, without what failed. Each attempt leaves out more, so there is an end.
    """

    passes: set[str] = field(default_factory=set)
    nodes: dict[str, str] = field(default_factory=dict)  # kept as opaque calls, and why
    without_ir: bool = False
    said: list[Reason] = field(default_factory=list)
    degradations: Diagnostics = field(default_factory=Diagnostics)
    last: str = "the graph runs without the passes of the IR"

    def add(self, error: Exception) -> bool:
        """Leave out what raised this. Return False if nothing can be left out, or if the user can mend it."""
        if isinstance(error, BadOption | BadOptionType | BadPath):
            return False
        if isinstance(error, PassFailed) and error.title not in self.passes:
            self.passes.update(error.titles)
            return self.say(f"pass {error.title}", f"{error.what}; the graph is compiled without it")
        origin = error.op.origin if isinstance(error, KernelFailed) else None
        if origin is not None and origin.top and origin.top not in self.nodes:
            self.nodes[origin.top] = first_line(error)
            return self.say(origin.target, f"{first_line(error)}; the call is carried through as it is")
        if not self.without_ir:
            self.without_ir = True
            what = f"{type(error).__name__}: {first_line(error)}"
            return self.say("graph", f"{what}; {self.last}")
        return False

    def say(self, what: str, why: str) -> bool:
        """Warn the user, and list it in the report."""
        self.said.append(Reason(what, why))
        self.degradations.add(f"{what}: {why}")
        return True


@dataclass(frozen=True)
class CompileFxArgs:
    """What a caller of `compile_fx` asks for, besides the settings."""

    static_inputs: tuple[int, ...] = ()
    """Inputs at the same address in every call."""
    is_backward: bool = False
    is_inference: bool = True
    has_guards: bool = False
    """Dynamo has checked the inputs of every call."""
    input_aliases: Mapping[int, int] = field(default_factory=dict[int, int])
    """Outputs that AOTAutograd regenerates, and the inputs that they are views of."""
    arg_names: tuple[str, ...] = ()
    """The names of the user's arguments."""
    debug_files: PhaseFiles | None = None
    """Where passes and code generators leave their graphs and code."""
    observe: Observer | None = None
    """Sees the graph as each attempt begins (`given`), after every pass, and after `convert` and `lower`."""
    buckets: Gears | None = None
    """The sizes that have programs of their own."""
    swap_group: SwapGroup | None = None
    """Graphs whose optimized programs replace the eager ones at the same time."""


@dataclass(frozen=True)
class GraphInfo:
    """Facts about the graph."""

    inputs: Sequence[Any]
    """Fake inputs, of `fake_mode`."""
    fake_mode: FakeTensorMode
    device: torch.device
    name: str = ""
    num_calls: int = 0
    """Calls in the graph as it was given."""
    reads_storage: bool = False
    """`as_strided` counts from the start of the storage of an input."""
    has_raw_as_strided: bool = False
    """A window is taken of memory that the IR has no tensor for."""


class Route(Enum):
    """The way of a graph to its program."""

    UNTOUCHED = "runs as AOTAutograd left it"
    CAPTURE = "ATen, to be recorded"
    ATEN = "ATen, without the IR"
    IR = "through the IR"
    INTERPRET = "the IR is interpreted"


@dataclass(frozen=True)
class CompilePlan:
    """What will be done with one graph. `make_plan` decides it, and nothing else does."""

    route: Route
    codegen: str
    """The code generator to begin with."""
    tier1: tuple[str, ...] = ()
    """The code generators that build an optimized program in the background, in the order they are asked."""
    decomposes: bool = False
    """Lowering decomposes ops for the code generator. An eager program runs them whole."""
    dump: DumpPlan | None = None
    """The ops of the IR whose tensors are dumped."""

    @property
    def uses_ir(self) -> bool:
        """Is the graph converted?"""
        return self.route in (Route.IR, Route.INTERPRET)

    @property
    def lowered_for(self) -> str:
        """The code generator that the lowered graph is made for."""
        return self.codegen if self.decomposes else "eager"

    def __str__(self) -> str:
        later = f", then {' or '.join(self.tier1)} in the background" if self.tier1 else ""
        return f"{self.route.value}; codegen {'eager' if self.tier1 else self.codegen}{later}"


@dataclass(frozen=True)
class Context:
    """One attempt to compile one graph."""

    settings: Settings
    info: GraphInfo
    plan: CompilePlan
    request: CompileFxArgs = field(default_factory=CompileFxArgs)
    fallbacks: Fallbacks = field(default_factory=Fallbacks)
    observer: CompileObserver = field(default_factory=CompileObserver)
    pass_stats: dict[str, Tally] = field(default_factory=dict[str, Tally])

    @property
    def inputs(self) -> list[Any]:
        """The fake inputs."""
        return list(self.info.inputs)

    @property
    def device(self) -> torch.device:
        """The device of the graph."""
        return self.info.device

    @property
    def name(self) -> str:
        """The name of the graph in logs and files."""
        return self.info.name

    @property
    def degradations(self) -> Diagnostics:
        """Where warnings about this graph go."""
        return self.fallbacks.degradations

    def show(self, title: str, graph: Any) -> None:
        """Show the observer a graph that no pass has made."""
        if self.request.observe is not None:
            self.request.observe(title, graph)

    def for_subgraph(
        self, inputs: Sequence[Any], fake_mode: FakeTensorMode | None = None, **request: Any
    ) -> Context:
        """Return the context of a part of the graph, or of the graph for other sizes."""
        return replace(
            self,
            info=replace(self.info, inputs=inputs, fake_mode=fake_mode or self.info.fake_mode),
            request=replace(self.request, observe=None, **request),
            plan=replace(self.plan, tier1=()),
        )


@dataclass(frozen=True)
class FrontEnd:
    """The optimized ATen graph, and the IR if the plan has one."""

    gm: fx.GraphModule
    ctx: Context
    outputs: OutputLayouts
    passes: PassContext
    ir: Graph | None = None
    report: ConversionReport = field(default_factory=ConversionReport)
    original: fx.GraphModule | None = None
    """The graph before all passes, if it reads the storages of inputs."""
    storage_inputs: tuple[int, ...] = ()
    """The inputs whose storages it reads."""

    @property
    def num_ops(self) -> int:
        """How many ops run."""
        if self.ir is None:
            return self.ctx.info.num_calls
        return sum(op.type not in (*INPUT_TYPES, OUTPUT_TYPE, "Const") for op in self.ir.ops)


@dataclass(frozen=True)
class Lowered:
    """The graph that code is generated for; None if the IR is interpreted."""

    gm: fx.GraphModule | None
    unplanned: fx.GraphModule | None = None
    """The graph before memory was planned for an eager program: what compilers want."""
    specialist: Specialist | None = None
    """Compiles programs for particular sizes."""
