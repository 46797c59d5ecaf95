"""Programs that write what a graph computes while it runs, where that was asked for: the FX graph as it was
given, the nodes that capture mode runs, the ops of the IR.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import fx

from torchair.backend.pipeline.context import Context
from torchair.backend.pipeline.interpreter import InterpretedProgram
from torchair.codegen.eager import generate
from torchair.core.log import logger
from torchair.core.program import Program
from torchair.debug.dumps.files import WarnOnWriteError, rank_folder
from torchair.debug.dumps.ge_op_dump import EngineDump, write_options
from torchair.debug.dumps.recorded_dump import RecordedDump
from torchair.debug.dumps.tensor_dump import ArrayFiles, TensorFiles, TensorFolder, calls, chosen
from torchair.debug.traces.device_graph import TraceFiles
from torchair.devices import get_device
from torchair.ge.graph import Graph

NO_STATIC_KERNELS = "static_kernel_compile has no effect where tensors are dumped: ops run one by one"


def dump_captured_graph(gm: fx.GraphModule, ctx: Context) -> Program | None:
    """The graph as AOTAutograd left it, writing what its calls compute; None where only a summary was
    wanted.
    """
    settings, asked = ctx.settings, ctx.settings.debug
    logger.warning("%s runs as it is, op by op: a dump or a summary was asked for", ctx.name)
    if settings.captures and settings.static_kernels:
        ctx.degradations.add(NO_STATIC_KERNELS)
    if not settings.dumps_original and (asked.enable_dump or asked.dump_config_path is not None):
        ctx.degradations.add("dump_config has no effect beside debug.data_dump and debug.fx_summary")
    if asked.data_dump is not None:
        folder, kept = rank_folder(asked.data_dump_path or "."), chosen(gm, asked.data_dump_filter)
        return ArrayFiles(gm, folder / ctx.name, kept, ctx.degradations)
    if settings.dumps_original and settings.run_eagerly:
        return ArrayFiles(gm, rank_folder(asked.dump_path) / ctx.name, calls(gm), ctx.degradations)
    if settings.dumps_original:
        return TensorFiles(gm, TensorFolder(asked.dump_path, ctx.degradations), ctx.degradations)
    return None


@dataclass(frozen=True)
class FxDump:
    """How capture mode writes what the nodes of a graph compute."""

    program: Program | None = None
    """The program that writes them, where graphs are not recorded."""
    recorded: RecordedDump | None = None
    """What copies them out of a recording. The graph returns them as further outputs."""


def dump_fx_nodes(lowered: fx.GraphModule, ctx: Context) -> FxDump:
    """Let a graph of capture mode write what every node computes, if the user asked for that. On a device
    with graphs it is recorded with copies of all tensors; elsewhere a program runs it node by node.
    """
    settings = ctx.settings
    if not settings.captures or not settings.dumps:
        return FxDump()
    folder = TensorFolder(settings.debug.dump_path, ctx.degradations)
    if get_device(ctx.device).why_no_graphs() is not None:
        logger.warning("%s runs node by node, without a recording: its tensors are dumped", ctx.name)
        return FxDump(program=TensorFiles(lowered, folder, ctx.degradations))
    logger.warning("%s is not compiled, and every call copies its tensors: they are dumped", ctx.name)
    return FxDump(recorded=RecordedDump(lowered, folder))


def reference(graph: Graph, gm: fx.GraphModule, ctx: Context) -> InterpretedProgram:
    """The program that interprets the IR, and dumps what was planned."""
    plan = ctx.plan.dump
    program = InterpretedProgram(graph, ctx.device, generate(gm), ctx.fallbacks)
    if plan is not None:
        logger.warning("%s runs directly, op by op: its tensors are dumped", ctx.name)
        program.dump = EngineDump(graph, plan, ctx.device, ctx.degradations)
        if ctx.settings.debug.dump_config_path is None:
            with WarnOnWriteError(ctx.degradations, "the options of a dump"):
                write_options(graph, ctx.settings.debug, plan)
    return program


def trace_files(ctx: Context) -> tuple[TraceFiles, ...]:
    """Who writes recorded graphs as task traces and checks them, if asked for and possible."""
    checks, files = ctx.settings.checks_deadlocks, ctx.observer.files
    reason = why_no_traces(ctx)
    if reason is not None and checks:
        ctx.degradations.add(f"deadlock_check has nothing to analyse: {reason}")
    if reason is not None or not (checks or files):
        return ()
    folder = files.model if files is not None else Path()
    return (TraceFiles(ctx.name, ctx.device, folder, ctx.degradations, checks),)


def why_no_traces(ctx: Context) -> str | None:
    """The reason why there is no device graph to look at, or None."""
    if ctx.settings.run_eagerly or ctx.settings.is_untouched or ctx.settings.dumps:
        return "nothing is recorded beside force_eager and dumps that run op by op"
    if not get_device(ctx.device).traces:
        return f"{ctx.device.type} writes no traces of recorded graphs"
    return None
