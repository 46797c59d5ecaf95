"""`torchair.explain`: what would happen to a model, without compiling anything for a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import fx

from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.compile import output_layouts
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.pipeline.ir import convert_to_ir, pass_context
from torchair.backend.pipeline.link import input_info
from torchair.backend.pipeline.plan import new_context
from torchair.backend.settings.settings import Settings, checked, ineffective_options, resolve_settings
from torchair.capture import Role
from torchair.capture.base.host_ops import host_op_reasons
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.base.report import ConversionReport, Reason
from torchair.core.source_location import source_of
from torchair.core.text_table import as_text, table
from torchair.core.torch_private.compilers.aot_autograd import ExplainWithBackend, reset_dynamo
from torchair.fxgraph.layout import layouts_of
from torchair.passes import FX_PASSES, PassContext, run
from torchair.passes.patterns.match.outcome import Outcome
from torchair.passes.patterns.sets.registry import apply_pattern_passes, of_the_other, untried


@dataclass(frozen=True)
class GraphFacts:
    """One graph: how many FX nodes it had and how many GE ops they became."""

    name: str
    nodes: int
    ge_ops: int


@dataclass(frozen=True)
class GraphBreak:
    """Where Dynamo had to stop, and why."""

    reason: str
    source: str


@dataclass(frozen=True)
class CopiedInput:
    """An input that a recording copies before each replay."""

    graph: str
    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class RuleFacts:
    """A replacement of the user's (`register_replacement`) in one graph: how often it fired; why it did not,
    and the line of the model that the reason is about.
    """

    graph: str
    rule: str
    fired: int
    why: str
    source: str


@dataclass
class Explanation:
    """What `explain` found. Prints itself as tables."""

    graphs: list[GraphFacts] = field(default_factory=list[GraphFacts])
    graph_breaks: list[GraphBreak] = field(default_factory=list[GraphBreak])
    converted: list[str] = field(default_factory=list[str])
    decomposed: list[Reason] = field(default_factory=list[Reason])
    fallbacks: list[Reason] = field(default_factory=list[Reason])
    on_host: list[Reason] = field(default_factory=list[Reason])
    copied_inputs: list[CopiedInput] = field(default_factory=list[CopiedInput])
    idle_options: dict[str, str] = field(default_factory=dict[str, str])
    rules: list[RuleFacts] = field(default_factory=list[RuleFacts])

    def tables(self) -> list[Table]:
        """One table per question."""
        counted = ("op", "times", "why")
        content: dict[str, tuple[Sequence[str], Sequence[Sequence[Any]]]] = {
            "Graphs": (("graph", "FX nodes", "GE ops"), [(g.name, g.nodes, g.ge_ops) for g in self.graphs]),
            "Graph breaks": (("why", "where"), [(b.reason, b.source) for b in self.graph_breaks]),
            "Taken apart": (counted, _counted(self.decomposed)),
            "Fall-backs: carried through as they are": (counted, _counted(self.fallbacks)),
            "Recordings are split at": (counted, _counted(self.on_host)),
            "Inputs copied before a replay": (
                ("graph", "input", "bytes", "why"),
                [(c.graph, c.name, c.bytes, c.why) for c in self.copied_inputs],
            ),
            "Replacements of patterns": (
                ("graph", "rule", "fired", "why not", "where"),
                [(r.graph, r.rule, r.fired, r.why, r.source.rpartition("/")[2]) for r in self.rules],
            ),
            "Options without effect here": (("option", "why"), list(self.idle_options.items())),
        }
        return [
            table(columns, rows, title=title, title_justify="left")
            for title, (columns, rows) in content.items()
            if rows
        ]

    def __str__(self) -> str:
        return as_text(*self.tables(), self.summary(), width=110)

    def summary(self) -> str:
        """All of it in one line."""
        kinds = f"{len(set(self.converted))} kinds of op converted, {len(set(self.decomposed))} taken apart"
        return f"{kinds}, {len(self.fallbacks)} fallbacks, {len(self.graph_breaks)} graph breaks"


def explain(
    model: Callable[..., Any], *args: Any, compiler_config: CompilerConfig | None = None, **kwargs: Any
) -> Explanation:
    """Trace `model(*args, **kwargs)` and say what graph mode makes of it, with this config; prints tables and
    returns the facts.

    Nothing is compiled for a device: the traced graphs run eagerly once, so the call has the model's side
    effects once.
    """
    config = checked(CompilerConfig() if compiler_config is None else compiler_config)
    found = Explanation(idle_options=ineffective_options(config))
    settings = resolve_settings(config)

    def inspect(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, request: CompileFxArgs) -> Any:
        _explain_graph(gm, inputs, settings, request, found)
        return _Eager(gm)

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_dynamo(gm, inputs, settings, {}, inspect)

    watched = ExplainWithBackend(backend)
    reset_dynamo()
    torch.compile(model, backend=watched)(*args, **kwargs)
    reset_dynamo()
    found.graph_breaks = [
        GraphBreak(reason.reason, _innermost(reason.user_stack))
        for reason in watched.break_reasons
        if reason.graph_break
    ]
    Console().print(*found.tables(), found.summary())
    return found


def _explain_graph(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    request: CompileFxArgs,
    found: Explanation,
) -> None:
    nodes = len(gm.graph.nodes)
    request = CompileFxArgs(static_inputs=request.static_inputs, arg_names=request.arg_names)
    gm, ctx = new_context(gm, inputs, settings.without_dumps(), request)
    layouts = layouts_of(gm)
    context = pass_context(ctx)
    context.explains = True
    run(FX_PASSES, gm, context)
    found.rules.extend(_rule(ctx.name, outcome) for outcome in _outcomes(context))
    graph, report = convert_to_ir(gm, ctx, layouts, context)
    found.graphs.append(GraphFacts(ctx.name, nodes, len(graph.ops)))
    _collect(report, found)
    hosts = host_op_reasons(gm).items()
    found.on_host.extend(Reason(str(node.target), why, source_of(node)) for node, why in hosts)
    roles = input_info(gm, ctx, output_layouts(gm, ctx, layouts))
    for index in roles.having(Role.PLAIN, Role.ALIAS):
        value = ctx.inputs[index]
        size = value.element_size() * int(torch.sym_int(value.numel())) if _is_static(value) else 0
        found.copied_inputs.append(
            CopiedInput(ctx.name, roles.title(index), size, "it is neither a parameter nor updated in place")
        )


def _outcomes(context: PassContext) -> list[Outcome]:
    """Of the rules that this configuration has, and of those that it has not."""
    others = of_the_other(context.config)
    if apply_pattern_passes.__name__ in context.changes:
        return [*context.rules, *others]
    off = not context.switches.get("pattern_fusion_pass", True)
    name = "pattern_fusion_pass=False" if off else f"{apply_pattern_passes.__name__}:off"
    return [*untried(context.config, f"switched off: {name}"), *others]


def _rule(graph: str, outcome: Outcome) -> RuleFacts:
    title = f"{outcome.rule} ({outcome.defined})" if outcome.defined else outcome.rule
    return RuleFacts(graph, title, outcome.fired, outcome.why, outcome.at)


def _collect(report: ConversionReport, found: Explanation) -> None:
    found.converted.extend(report.converted)
    found.decomposed.extend(report.decomposed)
    found.fallbacks.extend(report.fallbacks)


def _is_static(value: torch.Tensor) -> bool:
    return not any(isinstance(size, torch.SymInt) for size in value.shape)


class _Eager:
    """A runner that runs the FX graph as it is."""

    _boxed_call = True

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm

    @property
    def boxed(self) -> Any:
        return self

    def fast_path(self, written: bytes) -> None:
        return None

    def __call__(self, args: list[Any]) -> Any:
        return fx.Interpreter(self._gm).boxed_run(args)


def _innermost(stack: Sequence[Any]) -> str:
    frame = stack[-1] if stack else None
    return "" if frame is None else f"{frame.filename}:{frame.lineno}   {frame.line or ''}".rstrip()


def _counted(reasons: Sequence[Reason]) -> list[tuple[str, int, str]]:
    times = Counter((reason.op, reason.why) for reason in reasons)
    return [(op, count, why) for (op, why), count in sorted(times.items())]
