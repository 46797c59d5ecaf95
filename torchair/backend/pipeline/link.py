"""Link: generate the program of a graph, order its optimized program, and put a runner around them."""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial
from typing import Any

from torch import fx

from torchair.backend.pipeline import dump_programs
from torchair.backend.pipeline.autotune import can_be_tuned
from torchair.backend.pipeline.context import Context, FrontEnd, Lowered
from torchair.backend.pipeline.generate import generate
from torchair.backend.pipeline.multi_stream import has_scopes
from torchair.backend.pipeline.partitioned import PartitionedRunner
from torchair.backend.pipeline.plan import recording_policy, records
from torchair.backend.pipeline.tiered import TieredCompile, worker_unsupported_reason
from torchair.backend.specialize.size_buckets import room_of
from torchair.capture import CompiledProgram, InputInfo, Policy, Runner, RunnerOptions, capture, inputs_of
from torchair.capture.base.host_ops import copy_first, host_op_reasons
from torchair.capture.base.output_buffers import MaxSizes
from torchair.codegen import build, eager
from torchair.codegen.base.programs import Anchored, StorageOffsets
from torchair.core.log import logger
from torchair.core.program import Program
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import is_symbol
from torchair.passes.fx.cleanup.lists_to_tensors import MARK as HOST_LIST


def link(lowered: Lowered, front: FrontEnd) -> Runner:
    """Generate the program of a graph, and put the runner around it that checks, records and replays it."""
    ctx, outputs, gm = front.ctx, front.outputs, lowered.gm or front.gm
    guard = partial(guard_storage_offsets, front=front)
    dump = dump_programs.dump_fx_nodes(gm, ctx)
    if dump.recorded is not None:
        ctx = replace(ctx, settings=replace(ctx.settings.without_dumps(), codegen="eager"))
        outputs = replace(outputs, layouts=(*outputs.layouts, *[None] * len(dump.recorded.names)))
    policy, options = recording_policy(ctx, front.num_ops), RunnerOptions(lowered.specialist)
    finish = partial(make_runner, gm=gm, ctx=ctx, policy=policy, outputs=outputs, recorded=dump.recorded)
    if dump.program is not None:
        return finish(guard(dump.program), options=options)
    pieces = None
    if lowered.gm is not None and records(policy, ctx):
        hosts, pieces = host_calls(gm, ctx), partitions(ctx, policy)
        if hosts:
            _log_first_call(ctx, "it is run in pieces")
            program, parts = pieces.chain(gm, hosts, ctx.request.static_inputs)
            return finish(guard(program), options=replace(options, parts=parts))
    # What lies between scopes is compiled with the events that passes have added.
    source = gm if lowered.unplanned is None or has_scopes(gm) else lowered.unplanned
    if ctx.plan.tier1 and (why := worker_unsupported_reason(source)):
        _log_first_call(ctx, why)
        ctx = replace(ctx, plan=replace(ctx.plan, tier1=()))
    first = functools.cache(partial(first_program, lowered, front, ctx))
    if pieces is not None:
        promise = replace(outputs, is_eager=runs_as_it_is(first(), ctx))
        options = replace(options, split=pieces.split(gm, first(), ctx.request.static_inputs, promise))
    tiered = TieredCompile.of(source, ctx) if ctx.plan.tier1 and lowered.specialist is None else None
    cached = tiered.found(first) if tiered is not None else None
    if tiered is not None and cached is None:
        key = input_info(gm, ctx, outputs).key
        options = replace(options, successor=tiered.ordered(first(), (outputs, key), guard))
    return finish(guard(cached or first()), options=options)


def _log_first_call(ctx: Context, why: str) -> None:
    if ctx.plan.tier1:
        logger.info("%s is compiled in its first call: %s", ctx.name, why)


def first_program(lowered: Lowered, front: FrontEnd, ctx: Context) -> Program:
    """Return the program that serves the first call."""
    if ctx.settings.run_eagerly:
        return generate(front.gm, ctx)
    if lowered.gm is not None:
        return generate(lowered.gm, ctx)
    can_be_tuned(front.gm, ctx)
    assert front.ir is not None, "only the IR is run without a lowered graph"
    return dump_programs.reference(front.ir, front.gm, ctx)


def host_calls(lowered: fx.GraphModule, ctx: Context) -> dict[fx.Node, str]:
    """Return the calls that stop a recording, and why, once as much as possible is on the device."""
    if ctx.device.type != "cpu":
        copy_first(lowered, ctx.device)
    return host_op_reasons(lowered)


def partitions(ctx: Context, policy: Policy) -> PartitionedRunner:
    """Return what compiles the pieces of a graph that cannot be recorded whole."""

    def make(gm: fx.GraphModule, inputs: list[Any], static: tuple[int, ...], on_host: bool) -> Program:
        if on_host:
            return build("eager", gm, inputs)
        return generate(gm, ctx.for_subgraph(inputs, static_inputs=static))

    return PartitionedRunner(
        make,
        policy,
        ctx.info.fake_mode,
        ctx.device,
        ctx.name,
        ctx.request.has_guards,
        ctx.request.arg_names,
        ctx.degradations,
    )


def make_runner(
    program: Program,
    gm: fx.GraphModule,
    ctx: Context,
    policy: Policy,
    outputs: OutputLayouts,
    options: RunnerOptions,
    recorded: dump_programs.RecordedDump | None = None,
) -> Runner:
    """Put a runner around the program of a graph."""
    ctx.observer.code(program)
    buckets = ctx.request.buckets
    return capture(
        CompiledProgram(
            program,
            input_info(gm, ctx, outputs),
            policy,
            ctx.device,
            ctx.name,
            ctx.degradations,
            replace(outputs, is_eager=runs_as_it_is(program, ctx)),
            (*([recorded] if recorded is not None else []), *dump_programs.trace_files(ctx)),
            MaxSizes() if buckets is None else room_of(buckets, ctx.inputs, outputs.layouts),
        ),
        options,
    )


def input_info(gm: fx.GraphModule, ctx: Context, outputs: OutputLayouts) -> InputInfo:
    """Return the roles, the key and the aliases of the flat inputs."""
    packs = tuple(node.meta[HOST_LIST] for node in placeholders(gm) if HOST_LIST in node.meta)
    request = ctx.request
    return inputs_of(
        gm,
        ctx.inputs,
        request.static_inputs,
        packs,
        outputs.layouts,
        request.has_guards,
        request.arg_names,
    )


def runs_as_it_is(program: Program, ctx: Context) -> bool:
    """Do the ops of the graph itself run, and not what conversion or a compiler made of them?"""
    is_fx = ctx.settings.run_eagerly or not ctx.plan.uses_ir
    return program.kind in ("eager", "fx") and is_fx


def guard_storage_offsets(program: Program, front: FrontEnd) -> Program:
    """Guard a program that counts from the start of the storage of an input: it is right for one offset of
    the input in it. For others the ops run one by one.
    """
    original, inputs = front.original, front.ctx.inputs
    if original is None or runs_as_it_is(program, front.ctx):
        return program
    starts = {index: inputs[index].storage_offset() for index in front.storage_inputs}
    offsets = {index: offset for index, offset in starts.items() if not is_symbol(offset)}
    if not offsets:
        return program
    anchor = StorageOffsets(offsets, len(placeholders(original)))
    return Anchored(program, anchor, eager.generate(original), front.ctx.degradations)
