"""Generate code for an ATen graph: the program of the first call, and programs for particular sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx

from torchair.backend.pipeline import dump_programs
from torchair.backend.pipeline.autotune import can_be_tuned, tuned_program
from torchair.backend.pipeline.context import Context
from torchair.backend.pipeline.ir import pass_context
from torchair.backend.pipeline.multi_stream import check_units, has_scopes, streamed
from torchair.backend.pipeline.tiered import better_gears, worker_unsupported_reason
from torchair.backend.settings.autotune_config import Candidate
from torchair.backend.specialize.size_buckets import GearPrograms, Gears
from torchair.backend.specialize.static_shapes import StaticShapeCompiler, is_wanted, outputs_below
from torchair.capture import Specialist
from torchair.codegen import COMPILERS, CodegenOptions, build
from torchair.codegen.base.graph_prep import is_custom
from torchair.codegen.base.programs import Doubted
from torchair.core.errors import first_line, is_of_user
from torchair.core.log import logger
from torchair.core.program import Program, code_of
from torchair.core.source_location import source_of
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.symbols import Binding
from torchair.passes import LOWERED_PASSES, run
from torchair.passes.pass_manager import PassFailed

NEXT = {"native": "inductor", "inductor": "eager", "reference": "eager", "eager": "fx"}
"""The code generator that takes over a graph that another one cannot compile."""


def generate(gm: fx.GraphModule, ctx: Context) -> Program:
    """Compile an ATen graph with the code generator of the plan, or with one that takes over from it."""
    is_tuned = can_be_tuned(gm, ctx)
    if ctx.settings.run_eagerly:
        logger.warning("%s runs eagerly, op by op: debug.run_eagerly is set", ctx.name)
        return build("eager", gm, ctx.inputs)
    make = partial(_generate, gm, ctx)
    if ctx.plan.tier1:
        return make("eager")
    return (tuned_program(make, gm, ctx) if is_tuned else None) or _with_fallbacks(make, ctx)


def _first_codegen(ctx: Context) -> str:
    """Sizes with buckets have their own programs, and Inductor's cache would fix the sizes it asks about."""
    return ctx.plan.codegen if ctx.request.buckets is None else "eager"


def _generate(
    gm: fx.GraphModule, ctx: Context, kind: str, way: Candidate | None = None, folder: str = ""
) -> Program:
    """Compile the graph with one code generator."""
    settings, request = ctx.settings, ctx.request
    graph = gm
    if kind == "eager" and not (settings.captures and _first_codegen(ctx) == "eager"):
        graph = run(LOWERED_PASSES, copy_graph(gm), pass_context(ctx, kind))
    options = CodegenOptions(
        static=request.static_inputs,
        frozen=settings.frozen_parameter,
        guarded=request.has_guards and not request.is_backward,
        decomposed=ctx.plan.decomposes,
        backward=request.is_backward,
        inference=request.is_inference,
        tuned=not settings.captures,
        folder=folder,
        options={} if way is None else way.options,
        kept_only=way is None and settings.codegen != kind,
    )
    if has_scopes(graph):
        if kind in COMPILERS:
            return streamed(graph, ctx.info.fake_mode, kind, options, ctx.degradations)
        check_units(graph, None)  # here no block is a unit of code
    program = build(kind, graph, ctx.inputs, options)
    custom = [node for node in graph.graph.nodes if is_custom(node.target)]
    if kind != "inductor" or not custom or any(map(written_by, graph.graph.nodes)):
        return program
    return Doubted(program, code_of(_generate(gm, ctx, "eager")), ctx.degradations, source_of(custom[0]))


def _with_fallbacks(make: Callable[[str], Program], ctx: Context) -> Program:
    kind = _first_codegen(ctx)
    while kind in NEXT:
        try:
            return make(kind)
        except Exception as error:
            if isinstance(error, PassFailed) or is_of_user(error):
                raise
            why = f"{type(error).__name__}: {first_line(error)}"
            text = f"{kind} could not compile the graph ({why}); it runs with codegen={NEXT[kind]!r}"
            # The user did not ask for a library here, and loses nothing they were promised.
            if kind == "native" and ctx.settings.codegen == "auto":
                logger.info("%s: %s", ctx.name, text)
            else:
                logger.error("%s: %s", ctx.name, text)
                ctx.fallbacks.say(f"codegen {kind}", text)
            kind = NEXT[kind]
    return make(kind)


def static_shape_compiler(
    gm: fx.GraphModule, ctx: Context, contract: OutputLayouts
) -> StaticShapeCompiler | None:
    """Return the compiler of programs for single shapes, if the user asked for one. It takes the graph before
    memory is planned.
    """
    settings = ctx.settings
    if not settings.static_kernels or ctx.request.is_backward:
        return None
    if settings.dumps:
        ctx.degradations.add(dump_programs.NO_STATIC_KERNELS)
        return None
    if has_scopes(gm):  # the compiler of kernels would drop them
        ctx.degradations.add("static_kernel_compile has no effect on a graph with scopes")
        return None
    return StaticShapeCompiler(
        copy_graph(gm),
        ctx.name,
        CodegenOptions(
            ctx.request.static_inputs,
            decomposed=False,
            tuned=True,
            cached=not settings.static_kernels_uncached,
        ),
        contract,
        ctx.degradations,
        root=outputs_below(settings.static_kernel_folder),
        wanted=partial(is_wanted, settings.static_kernel_symbol, settings.static_kernel_values),
    )


def bucket_compiler(
    lowered: fx.GraphModule, ctx: Context, buckets: Gears, contract: OutputLayouts
) -> Specialist:
    """Return what compiles the graph for each bucket of sizes: in the background where the plan has optimized
    programs, otherwise with the code generator of the plan.
    """
    binding = Binding(ctx.inputs)
    # In training, the programs of a forward and of its backward would have to be swapped in together.
    is_alone = ctx.request.is_inference and not ctx.request.is_backward
    is_sent = ctx.plan.tier1 and is_alone and not has_scopes(lowered)
    if is_sent and not worker_unsupported_reason(lowered):
        return better_gears(lowered, ctx, contract, lambda args: buckets.of(args, binding) in buckets)

    def make(gm: fx.GraphModule, inputs: list[Any], fake_mode: FakeTensorMode) -> Program:
        return generate(gm, ctx.for_subgraph(inputs, fake_mode, buckets=None))

    return GearPrograms(copy_graph(lowered), buckets, binding, contract, ctx.degradations, make)
