"""Compile one functional ATen graph into a runner. The steps run from top to bottom; each returns its result.

`plan.py` decides what runs. `ir.py`, `generate.py` and `link.py` hold the steps that this file puts in order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from torchair.backend.pipeline import dump_programs
from torchair.backend.pipeline.autotune import can_be_tuned
from torchair.backend.pipeline.context import CompileFxArgs, Context, Fallbacks, FrontEnd, Lowered, Route
from torchair.backend.pipeline.generate import bucket_compiler, static_shape_compiler
from torchair.backend.pipeline.ir import (
    Layouts,
    convert_to_ir,
    lower_to_aten,
    pass_context,
    strip_outputs,
    warn_opaque_ops,
)
from torchair.backend.pipeline.link import link, make_runner
from torchair.backend.pipeline.plan import new_context, recording_policy, replan
from torchair.backend.settings.settings import Settings
from torchair.capture import Runner, RunnerOptions
from torchair.codegen import build
from torchair.convert.base.report import ConversionReport
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import is_of_user
from torchair.core.log import logger, warn_if_slow
from torchair.core.source_location import graph_location
from torchair.debug.dumps.fusion_stats import FUSION_RESULTS
from torchair.debug.dumps.graph_file import GraphSignature
from torchair.debug.observer.compile_observer import CompileObserver
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.layout import has_raw_as_strided, layouts_of, new_values, storage_relative_inputs
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Binding
from torchair.passes import CAPTURE_PASSES, FX_PASSES, PLACE_PASSES, run

QUICK_START = "engine_config.codegen='eager' starts at once"
"""The hint for users who wait for a compile."""


def compile_fx(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, request: CompileFxArgs | None = None
) -> Runner:
    """Compile a functional ATen graph with fake (or real) example inputs. `gm` is not modified.

    A step that fails is left out of the next attempt, which starts from the graph as it was given. An error
    is raised if the user's code is at fault, or if nothing more can be left out.
    """
    request = request or CompileFxArgs()
    fallbacks = Fallbacks(
        without_ir=settings.captures, degradations=Diagnostics(settings.strict, graph_location(gm))
    )
    observer = CompileObserver(settings.debug, request.debug_files, settings.captures, fallbacks.degradations)
    while True:
        graph, ctx = new_context(gm, inputs, settings, request, fallbacks=fallbacks, observer=observer)
        try:
            hint = "" if settings.codegen == "eager" else QUICK_START
            with warn_if_slow(f"{ctx.name} of {ctx.info.num_calls} ops is being compiled", hint):
                return compile_graph(graph, ctx)
        except Exception as error:
            if is_of_user(error) or not fallbacks.add(error):
                raise


def compile_graph(gm: fx.GraphModule, ctx: Context) -> Runner:
    """Make one attempt."""
    began = time.perf_counter()
    logger.info("%s: %s", ctx.name, ctx.plan)
    # Passes of the user may change the outputs: they are stripped after the passes then.
    is_last = ctx.plan.route is not Route.UNTOUCHED and ctx.settings.has_user_passes
    layouts = layouts_of(gm) if is_last else strip_outputs(gm, ctx.request.input_aliases)
    ctx.observer.begin(gm, ctx.name, GraphSignature(ctx.inputs, ctx.device, layouts))
    if ctx.plan.route is Route.UNTOUCHED:
        runner, report = run_untouched(gm, ctx, layouts), ConversionReport()
    else:
        front = front_end(gm, ctx, layouts)
        runner, report = link(back_end(front), front), front.report
    FUSION_RESULTS.add(ctx.name, ctx.pass_stats, ctx.settings.statistics_when, ctx.degradations)
    report.detours.extend(ctx.fallbacks.said)
    runner.conversion = report
    kind, seconds = runner.program.kind, time.perf_counter() - began
    logger.event("%s: %s program ready in %.2f s", ctx.name, kind, seconds)
    return runner


def run_untouched(gm: fx.GraphModule, ctx: Context, layouts: Layouts) -> Runner:
    """Run the graph op by op, as AOTAutograd left it."""
    can_be_tuned(gm, ctx)
    program = dump_programs.dump_captured_graph(gm, ctx) or build("eager", gm, ctx.inputs)
    if ctx.settings.captures:
        ctx.observer.recorded_graph(gm)
    else:
        ctx.observer.without_ir()
    policy = recording_policy(ctx, ctx.info.num_calls)
    return make_runner(program, gm, ctx, policy, output_layouts(gm, ctx, layouts), RunnerOptions())


def front_end(gm: fx.GraphModule, ctx: Context, layouts: Layouts) -> FrontEnd:
    """Run the passes over the ATen graph, and convert it to the IR if the plan has one."""
    ctx.show("given", gm)
    passes = pass_context(ctx)
    storage_inputs = tuple(storage_relative_inputs(gm))
    original = copy_graph(gm) if storage_inputs else None
    run(FX_PASSES, gm, passes)
    if ctx.settings.has_user_passes:
        layouts = strip_outputs(gm, {})
        ctx.observer.call = GraphSignature(ctx.inputs, ctx.device, layouts)
    added = [node.meta["val"] for node in placeholders(gm)][len(ctx.inputs) :]
    info = replace(
        ctx.info,
        inputs=[*ctx.inputs, *added],
        reads_storage=bool(storage_inputs),
        has_raw_as_strided=has_raw_as_strided(gm),
    )
    ctx = replan(ctx, info)
    passes.inputs = ctx.inputs
    ir, report = None, ConversionReport()
    outputs = output_layouts(gm, ctx, layouts)
    if ctx.plan.uses_ir:
        ir, report = convert_to_ir(gm, ctx, layouts, passes)
        warn_opaque_ops(report, ctx)
    return FrontEnd(gm, ctx, outputs, passes, ir, report, original, storage_inputs)


def output_layouts(gm: fx.GraphModule, ctx: Context, layouts: Layouts) -> OutputLayouts:
    """Return what the results of the graph must look like."""
    written = tuple(place for place, _ in new_values(gm))
    return OutputLayouts(layouts, Binding(ctx.inputs), written, lets_go=ctx.request.is_backward)


def back_end(front: FrontEnd) -> Lowered:
    """Lower the graph to the calls that will run."""
    gm, ctx = front.gm, front.ctx
    lowered, unplanned, specialist = gm, None, None
    match ctx.plan.route:
        case Route.CAPTURE:
            specialist = static_shape_compiler(gm, ctx, front.outputs)
            unplanned = copy_graph(gm) if ctx.plan.tier1 else None
            run(CAPTURE_PASSES, gm, front.passes)
            ctx.observer.recorded_graph(gm)
        case Route.IR:
            assert front.ir is not None, "the front end has converted the graph"
            lowered = lower_to_aten(front.ir, gm, ctx)
            run(PLACE_PASSES, lowered, pass_context(ctx))
            ctx.show("lower", lowered)
        case Route.INTERPRET:
            return Lowered(None)
        case _:
            ctx.observer.without_ir()
    if ctx.request.buckets is not None:
        specialist = bucket_compiler(lowered, ctx, ctx.request.buckets, front.outputs)
    return Lowered(lowered, unplanned, specialist)
