"""The steps of a compile that go through the IR: passes, conversion, and lowering back to ATen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import fx

from torchair.backend.pipeline.context import Context
from torchair.convert.base.report import ConversionReport
from torchair.convert.convert import convert
from torchair.core.torch_private.compilers.inductor import lowering_table
from torchair.debug.observer.compile_observer import OPTIMIZED, ORIGINAL
from torchair.devices import get_device
from torchair.engine.evaluate import evaluate_now
from torchair.engine.infer import inference
from torchair.engine.lower import lower
from torchair.fxgraph.conj_neg import take_marks_off
from torchair.fxgraph.layout import Layout, drop_input_views, layouts_of
from torchair.fxgraph.placeholders import placeholders
from torchair.ge.files import verify as ge_verify
from torchair.ge.files.verify import verify, verify_emitted
from torchair.ge.graph import Graph
from torchair.passes import GE_PASSES, PassContext, run
from torchair.passes.pass_manager import Observer

Layouts = tuple[Layout | None, ...]


def strip_outputs(gm: fx.GraphModule, input_aliases: Mapping[int, int]) -> Layouts:
    """Take out of the graph what the runner does to its outputs (views of inputs, conj and neg bits), and
    return the layouts that the outputs must have.
    """
    marks = take_marks_off(gm)
    layouts = drop_input_views(gm, layouts_of(gm), input_aliases)
    return tuple(
        replace(layout, marks=marks.get(place, ())) if layout is not None else None
        for place, layout in enumerate(layouts)
    )


def pass_context(ctx: Context, codegen: str | None = None) -> PassContext:
    """Return what passes read. `codegen` is the generator that runs next, if it is not that of the plan."""
    settings, device = ctx.settings, get_device(ctx.device)
    return PassContext(
        switches=settings.switches(
            codegen or ctx.plan.codegen, has_streams=device.has_streams, limits_cores=device.limits_cores
        ),
        inputs=ctx.inputs,
        user_pre_pass=settings.user_pre_pass,
        user_post_pass=settings.user_post_pass,
        config=settings.config,
        observe=_observe_passes(ctx, writes_files=codegen is None),
        verify=_verify if settings.verify else None,
        without=ctx.fallbacks.passes,
        named=settings.named_passes,
        order=settings.order,
        scope={} if settings.captures else settings.session_scope,
        compute=partial(evaluate_now, device=ctx.device),
        tallies=ctx.pass_stats,
        degradations=ctx.degradations,
    )


def _observe_passes(ctx: Context, *, writes_files: bool) -> Observer | None:
    wanted = [ctx.request.observe, ctx.observer.observe if writes_files else None]
    observers = [observe for observe in wanted if observe is not None]

    def observe_all(title: str, graph: Any) -> None:
        for observe in observers:
            observe(title, graph)

    return observe_all if observers else None


def _verify(graph: Any) -> None:
    """Check a graph of either kind."""
    if isinstance(graph, Graph):
        verify(graph)
        verify_emitted(graph)
    else:
        graph.graph.lint()


def convert_to_ir(
    gm: fx.GraphModule, ctx: Context, layouts: Layouts, context: PassContext
) -> tuple[Graph, ConversionReport]:
    """Convert an ATen graph to the IR, and run the passes over it."""
    graph, report = convert(
        gm,
        inference(ctx.info.fake_mode, ctx.device),
        ctx.info.fake_mode,
        name=ctx.name,
        fold_views=ctx.settings.fold_views,
        layouts=layouts,
        opaque=ctx.fallbacks.nodes,
        soc=ctx.settings.soc,
    )
    ctx.show("convert", graph)
    ctx.observer.ir(ORIGINAL, graph)
    graph = run(GE_PASSES, graph, context)
    ctx.observer.ir(OPTIMIZED, graph)
    if ge_verify.EVERY_GRAPH:
        verify_emitted(graph)
    return graph, report


def warn_opaque_ops(report: ConversionReport, ctx: Context) -> None:
    """Warn of each op without a converter, once for each cause."""
    warned = ctx.fallbacks.nodes.values()
    losses = [r for r in report.fallbacks if r.why not in warned]
    losses = [r for r in losses if not r.is_of_type and not r.is_told_by_another]
    causes = dict.fromkeys((r.op, r.why, r.source) for r in losses)
    for op, why, source in causes:
        what = f"{op} has no converter here and is carried through as it is: {why}"
        ctx.degradations.add(what, at=source, next="register_fx_node_ge_converter takes one")


def lower_to_aten(graph: Graph, gm: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    """Lower a graph of the IR to ATen calls, decomposed as the code generator of the plan wants them."""
    inputs = placeholders(gm)
    named = [(node.name, node.meta["val"]) for node in inputs]
    table = lowering_table(ctx.plan.lowered_for)
    lowered = lower(graph, named, ctx.info.fake_mode, ctx.device, table)
    for node, given in zip(placeholders(lowered), inputs, strict=True):
        # Which argument of the user's it is.
        node.meta |= {"desc": given.meta["desc"]} if "desc" in given.meta else {}
    return lowered
