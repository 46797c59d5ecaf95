"""Programs that write what a graph computes while it runs, where that was asked for: the FX graph as it was
given, the nodes that capture mode runs, the ops of the IR.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import fx

from torchair.backend.pipeline.context import Stage
from torchair.backend.pipeline.interpreter import InterpretedProgram
from torchair.codegen.eager import generate
from torchair.core.log import logger
from torchair.core.program import Program
from torchair.debug.dumps.dump_plan import plan_of
from torchair.debug.dumps.files import WarnOnWriteError, rank_folder
from torchair.debug.dumps.ge_op_dump import EngineDump, write_options
from torchair.debug.dumps.recorded_dump import RecordedDump
from torchair.debug.dumps.tensor_dump import ArrayFiles, TensorFiles, TensorFolder, calls, chosen
from torchair.debug.traces.device_graph import TraceFiles
from torchair.devices import get_device
from torchair.ge.graph import Graph

NO_STATIC_KERNELS = "static_kernel_compile has no effect where tensors are dumped: ops run one by one"


def dump_captured_graph(gm: fx.GraphModule, stage: Stage) -> Program | None:
    """The graph as AOTAutograd left it, writing what its calls compute; None where only a summary was
    wanted.
    """
    settings, asked = stage.settings, stage.settings.debug
    logger.warning("%s runs as it is, op by op: a dump or a summary was asked for", stage.name)
    if settings.captures and settings.static_kernels:
        stage.degradations.add(NO_STATIC_KERNELS)
    if not settings.dumps_original and (asked.enable_dump or asked.dump_config_path is not None):
        stage.degradations.add("dump_config has no effect beside debug.data_dump and debug.fx_summary")
    if asked.data_dump is not None:
        folder, kept = rank_folder(asked.data_dump_path or "."), chosen(gm, asked.data_dump_filter)
        return ArrayFiles(gm, folder / stage.name, kept, stage.degradations)
    if settings.dumps_original and settings.run_eagerly:
        return ArrayFiles(gm, rank_folder(asked.dump_path) / stage.name, calls(gm), stage.degradations)
    if settings.dumps_original:
        return TensorFiles(gm, TensorFolder(asked.dump_path, stage.degradations), stage.degradations)
    return None


def dump_fx_nodes(lowered: fx.GraphModule | None, stage: Stage) -> Program | None:
    """Capture mode: let the graph write what every node computes, if that was asked for. On a device with
    graphs it is recorded with copies of all that; elsewhere this program runs it node by node.
    """
    settings = stage.settings
    if not settings.captures or not settings.dumps:
        return None
    assert lowered is not None, "capture mode has a lowered graph"
    folder = TensorFolder(settings.debug.dump_path, stage.degradations)
    if get_device(stage.device).why_no_graphs() is not None:
        logger.warning("%s runs directly, node by node: its tensors are dumped", stage.name)
        return TensorFiles(lowered, folder, stage.degradations)
    logger.warning("%s is not compiled, and copies its tensors in every call: they are dumped", stage.name)
    dump = RecordedDump(lowered, folder)
    stage.settings = replace(settings.without_dumps(), codegen="eager")
    stage.layouts += (None,) * len(dump.names)
    stage.observers += (dump,)
    return None


def choose(stage: Stage) -> None:
    """Graph mode: what is dumped of this graph. One of which nothing is dumped is compiled as usual."""
    settings = stage.settings
    if settings.captures or not settings.dumps:
        return
    plan = None
    if settings.run_eagerly or not stage.uses_ir:
        stage.degradations.add(
            "dump_config dumps ops of the IR, and a graph runs without it: nothing is dumped",
            next="debug.data_dump dumps any graph",
        )
    else:
        plan = plan_of(settings.debug, stage.degradations)
    stage.plan = plan if plan is not None and plan.takes(stage.name) else None
    if stage.plan is None:
        stage.settings = settings.without_dumps()


def reference(graph: Graph, gm: fx.GraphModule, stage: Stage) -> InterpretedProgram:
    """The program that interprets the IR, and dumps what was planned."""
    plan = stage.plan
    program = InterpretedProgram(graph, stage.device, generate(gm), stage.detours)
    if plan is not None:
        logger.warning("%s runs directly, op by op: its tensors are dumped", stage.name)
        program.dump = EngineDump(graph, plan, stage.device, stage.degradations)
        if stage.settings.debug.dump_config_path is None:
            with WarnOnWriteError(stage.degradations, "the options of a dump"):
                write_options(graph, stage.settings.debug, plan)
    return program


def trace_files(stage: Stage) -> tuple[TraceFiles, ...]:
    """Who writes recorded graphs as task traces and checks them, if asked for and possible."""
    checks, files = stage.settings.checks_deadlocks, stage.watch.files
    reason = why_no_traces(stage)
    if reason is not None and checks:
        stage.degradations.add(f"deadlock_check has nothing to analyse: {reason}")
    if reason is not None or not (checks or files):
        return ()
    folder = files.model if files is not None else Path()
    return (TraceFiles(stage.name, stage.device, folder, stage.degradations, checks),)


def why_no_traces(stage: Stage) -> str | None:
    """The reason why there is no device graph to look at, or None."""
    if stage.settings.run_eagerly or stage.settings.is_untouched or stage.settings.dumps:
        return "nothing is recorded beside force_eager and dumps that run op by op"
    if not get_device(stage.device).traces:
        return f"{stage.device.type} writes no traces of recorded graphs"
    return None
