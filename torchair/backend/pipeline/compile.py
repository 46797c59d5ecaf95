"""The whole story on one page: a functional ATen graph in, a runner out. One stage, one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import fx

from torchair.backend.pipeline import dump_programs
from torchair.backend.pipeline.autotune import can_be_tuned, tuned_program
from torchair.backend.pipeline.context import Stage
from torchair.backend.pipeline.fallback import Fallbacks
from torchair.backend.pipeline.multi_stream import check_units, has_scopes, streamed
from torchair.backend.pipeline.normalize import normalize_graph
from torchair.backend.pipeline.offset_guard import guard_storage_offsets, runs_as_it_is
from torchair.backend.pipeline.partitioned import PartitionedRunner
from torchair.backend.pipeline.tiered import (
    TieredCompile,
    better_gears,
    optimizing_codegens,
    worker_unsupported_reason,
)
from torchair.backend.service.scheduler import SwapGroup
from torchair.backend.settings.autotune_config import Candidate
from torchair.backend.settings.settings import Settings
from torchair.backend.specialize.size_buckets import GearPrograms, Gears, room_of
from torchair.backend.specialize.static_shapes import StaticShapeCompiler, is_wanted, outputs_below
from torchair.capture import (
    CompiledProgram,
    InputInfo,
    Policy,
    Runner,
    RunnerOptions,
    Specialist,
    capture,
    inputs_of,
)
from torchair.capture.base.host_ops import copy_first, host_op_reasons
from torchair.capture.base.output_buffers import MaxSizes
from torchair.codegen import COMPILERS, CodegenOptions, build
from torchair.codegen.base.graph_prep import is_custom
from torchair.codegen.base.programs import Doubted
from torchair.convert.base.report import ConversionReport
from torchair.convert.convert import convert
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line, is_of_user
from torchair.core.log import logger, warn_if_slow
from torchair.core.program import Program, code_of
from torchair.core.source_location import graph_location, source_of
from torchair.core.torch_private.compilers.inductor import lowering_table
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.debug.dumps.fusion_stats import FUSION_RESULTS
from torchair.debug.dumps.graph_file import GraphSignature as GraphCall
from torchair.debug.observer.compile_observer import OPTIMIZED, ORIGINAL, CompileObserver
from torchair.debug.observer.debug_dir import PhaseFiles
from torchair.devices import get_device
from torchair.engine.evaluate import evaluate_now
from torchair.engine.infer import inference
from torchair.engine.lower import lower
from torchair.fxgraph.conj_neg import take_marks_off
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.layout import (
    Layout,
    drop_input_views,
    has_raw_as_strided,
    layouts_of,
    new_values,
    storage_relative_inputs,
)
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Binding, has_symbols
from torchair.ge.files import verify as ge_verify
from torchair.ge.files.verify import verify, verify_emitted
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph
from torchair.passes import (
    CAPTURE_PASSES,
    FX_PASSES,
    GE_PASSES,
    LOWERED_PASSES,
    PLACE_PASSES,
    PassContext,
    run,
)
from torchair.passes.fx.cleanup.lists_to_tensors import MARK as HOST_LIST
from torchair.passes.pass_manager import Observer, PassFailed

# A recording on the CPU of so many calls is worth a library, if there is one on disk: it saves the Python
# between kernels, 2.7 us for each layer of an MLP, on every call. Building one takes 11 to 30 s on two cores.
MANY_CALLS = 40
QUICK_START = "engine_config.codegen='eager' starts at once"
"""What is said to those who wait."""
# Who serves a graph that a code generator cannot serve.
NEXT = {"native": "inductor", "inductor": "eager", "reference": "eager", "eager": "fx"}


def compile_fx(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    *,
    static: Sequence[int] = (),
    backward: bool = False,
    is_inference: bool = True,
    guarded: bool = False,
    regenerated: Mapping[int, int] | None = None,
    names: Sequence[str] = (),
    files: PhaseFiles | None = None,
    observe: Observer | None = None,
    gears: Gears | None = None,
    together: SwapGroup | None = None,
) -> Runner:
    """Compile a functional ATen graph with fake (or real) example inputs; the graph that was given stays as
    it is. `regenerated` outputs are returned as views of these inputs; `names` are what the user calls the
    inputs of the whole; `files` keep what the passes and the code generator made of it; better programs of
    graphs that are compiled `together` are taken over at the same time; `observe` sees the graph as each try
    begins (`given`), after every pass, and as conversion (`convert`) and lowering (`lower`) leave it.

    What fails on the way, and is not the user's own, is left out: from the graph as it was given the next try
    goes around it.
    """
    degradations = Diagnostics(settings.strict, graph_location(gm))
    detours = Fallbacks(without_ir=settings.captures, degradations=degradations)
    watch = CompileObserver(settings.debug, files, settings.captures, degradations)
    while True:
        prepared, stage = normalize_graph(gm, inputs, settings)
        stage.static, stage.backward, stage.is_inference = tuple(static), backward, is_inference
        stage.guarded, stage.detours, stage.names = guarded, detours, tuple(names)
        stage.observe, stage.gears = observe, gears
        stage.together = together or stage.together
        if settings.is_untouched or not settings.has_user_passes:
            stage.layouts = promised(prepared, regenerated or {})
        stage.watch, watch.name, watch.call = watch, stage.name, call_of(stage)
        try:
            hint = "" if settings.codegen == "eager" else QUICK_START
            with warn_if_slow(f"{stage.name} of {stage.calls} ops is being compiled", hint):
                return compile_stage(prepared, stage)
        except Exception as error:
            if is_of_user(error) or not detours.add(error):
                raise


def compile_stage(gm: fx.GraphModule, stage: Stage) -> Runner:
    """One try: one stage, one line."""
    began = time.perf_counter()
    stage.watch.graph(gm)
    runner = run_untouched(gm, stage) if stage.settings.is_untouched else run_pipeline(gm, stage)
    runner.conversion = report_of(stage)
    kind, seconds = runner.program.kind, time.perf_counter() - began
    logger.event("%s: %s program ready in %.2f s", stage.name, kind, seconds)
    return runner


def run_pipeline(gm: fx.GraphModule, stage: Stage) -> Runner:
    """Passes, conversion, code, recordings."""
    dump_programs.choose(stage)
    stage.serves_first = stage.is_whole = bool(optimizing_codegens(stage))
    stage.show("given", gm)
    context = pass_context(stage)
    absolute = storage_relative_inputs(gm)
    stage.is_anchored = bool(absolute)
    original = copy_graph(gm) if absolute else gm
    run(FX_PASSES, gm, context)
    if stage.settings.has_user_passes:
        stage.layouts = promised(gm, {})
        stage.watch.call = call_of(stage)
    stage.is_raw = has_raw_as_strided(gm)
    stage.inputs += [node.meta["val"] for node in placeholders(gm)][len(stage.inputs) :]
    contract = contract_of(gm, stage)
    specialist: Specialist | None = static_kernels(gm, stage, contract) if stage.settings.captures else None
    # What runs op by op is planned in memory by passes; a compiler wants the graph as it was before.
    plain = copy_graph(gm) if stage.serves_first and stage.settings.captures else None
    lowered = to_lowered(gm, stage, context)
    if stage.gears is not None and lowered is not None:
        specialist = gear_programs(lowered, stage, stage.gears, contract)
    # Who may have to run the graph as it is: calls that begin elsewhere in a storage.
    guard = partial(guard_storage_offsets, original=original, absolute=absolute)
    return build_runner(gm, lowered, stage, contract, guard, specialist, plain)


def build_runner(
    gm: fx.GraphModule,
    lowered: fx.GraphModule | None,
    stage: Stage,
    contract: OutputLayouts,
    guard: Callable[[Program, Stage], Program],
    specialist: Specialist | None = None,
    plain: fx.GraphModule | None = None,
) -> Runner:
    """Code for a graph, in pieces where only pieces can be recorded, behind a runner; `plain` is what better
    programs are built from, if not the lowered graph.
    """
    program, parts, split = dump_programs.dump_fx_nodes(lowered, stage), None, None
    contract, policy = replace(contract, layouts=stage.layouts), policy_of(stage)
    graph = gm if lowered is None else lowered
    hosts = (
        on_host(lowered, stage)
        if program is None and lowered is not None and records(policy, stage)
        else None
    )
    # What lies between scopes is compiled with the events that passes have added.
    source = graph if plain is None or has_scopes(graph) else plain
    if stage.serves_first and (why := "it is run in pieces" if hosts else worker_unsupported_reason(source)):
        logger.info("%s is compiled in its first call: %s", stage.name, why)
        stage.serves_first = False
    if hosts is not None and lowered is not None:
        pieces = pieces_of(stage, policy)
        if hosts:
            program, parts = pieces.chain(lowered, hosts, stage.static)
        else:
            program = to_program(lowered, gm, stage)
            promise = replace(contract, is_eager=runs_as_it_is(program, stage))
            split = pieces.split(lowered, program, stage.static, promise)
    has_one = stage.serves_first and specialist is None
    better = TieredCompile.of(source, stage) if has_one else None
    found = better and better.found(lambda: to_program(lowered, gm, stage))
    bare = found or program or to_program(lowered, gm, stage)
    program, successor = guard(bare, stage), None
    if better is not None and found is None:
        successor = better.ordered(bare, (contract, input_facts(graph, stage).key), guard)
    around = RunnerOptions(specialist, successor, split, parts=parts)
    return to_runner(program, graph, stage, contract, around)


def run_untouched(gm: fx.GraphModule, stage: Stage) -> Runner:
    """The graph as AOTAutograd left it, op by op."""
    can_be_tuned(gm, stage)
    program = dump_programs.dump_captured_graph(gm, stage) or build("eager", gm, stage.inputs)
    if stage.settings.captures:
        stage.watch.recorded_graph(gm)
    else:
        stage.watch.without_ir()
    return to_runner(program, gm, stage, contract_of(gm, stage), RunnerOptions())


def to_runner(
    program: Program, gm: fx.GraphModule, stage: Stage, contract: OutputLayouts, around: RunnerOptions
) -> Runner:
    """The program of this graph behind a runner."""
    stage.watch.code(program)
    return capture(
        CompiledProgram(
            program,
            input_facts(gm, stage),
            policy_of(stage),
            stage.device,
            stage.name,
            stage.degradations,
            replace(contract, is_eager=runs_as_it_is(program, stage)),
            (*stage.observers, *dump_programs.trace_files(stage)),
            MaxSizes() if stage.gears is None else room_of(stage.gears, stage.inputs, contract.layouts),
        ),
        around,
    )


def call_of(stage: Stage) -> GraphCall:
    """What the files of a graph say about how it is called."""
    return GraphCall(stage.inputs, stage.device, stage.layouts)


def contract_of(gm: fx.GraphModule, stage: Stage) -> OutputLayouts:
    """What the graph promises of its results."""
    written = tuple(place for place, _ in new_values(gm))
    return OutputLayouts(stage.layouts, Binding(stage.inputs), written, lets_go=stage.backward)


def report_of(stage: Stage) -> ConversionReport:
    """What conversion did, and how often passes found something is written if that was asked for."""
    FUSION_RESULTS.add(stage.name, stage.tallies, stage.settings.statistics_when, stage.degradations)
    stage.report.detours.extend(stage.detours.said)
    return stage.report


def to_lowered(gm: fx.GraphModule, stage: Stage, context: PassContext) -> fx.GraphModule | None:
    """The graph that code is generated for; None where the IR itself is run."""
    if stage.settings.captures:
        run(CAPTURE_PASSES, gm, context)
        stage.watch.recorded_graph(gm)
        return gm
    if not stage.uses_ir:
        stage.watch.without_ir()
        dump_programs.choose(stage)
        return gm
    graph = convert_to_ge(gm, stage, context)
    warn_fallbacks(stage)
    if stage.interprets:
        return None
    lowered = lower_to_aten(graph, gm, stage)
    run(PLACE_PASSES, lowered, pass_context(stage))
    stage.show("lower", lowered)
    return lowered


def policy_of(stage: Stage) -> Policy:
    """How recordings of this graph are made; that may depend on how many ops it has."""
    ops = stage.calls
    if stage.ge_graph is not None:
        ops = sum(op.type not in (*INPUT_TYPES, OUTPUT_TYPE, "Const") for op in stage.ge_graph.ops)
    policy = stage.settings.policy(
        backward=stage.backward,
        inference=stage.is_inference,
        sized_ops=ops if has_symbols(stage.inputs) else None,
    )
    if stage.gears is None:
        return policy
    # Sizes that were announced come again.
    return replace(policy, patience=0, capture_limit=max(policy.capture_limit, len(stage.gears.rows)))


def records(policy: Policy, stage: Stage) -> bool:
    """Are recordings made of this graph?"""
    return policy.capture and get_device(stage.device).why_no_graphs() is None


def on_host(lowered: fx.GraphModule, stage: Stage) -> dict[fx.Node, str]:
    """The calls that stop a recording, once as much as possible is on the device."""
    if stage.device.type != "cpu":
        copy_first(lowered, stage.device)
    return host_op_reasons(lowered)


def pieces_of(stage: Stage, policy: Policy) -> PartitionedRunner:
    """How the pieces of a graph are made, where it is split."""

    def make(gm: fx.GraphModule, inputs: list[Any], static: tuple[int, ...], on_host: bool) -> Program:
        if on_host:
            return build("eager", gm, inputs)
        piece = replace(stage, inputs=inputs, static=static, ge_graph=None, observe=None, serves_first=False)
        return to_program(gm, gm, piece)

    return PartitionedRunner(
        make,
        policy,
        stage.fake_mode,
        stage.device,
        stage.name,
        stage.guarded,
        stage.names,
        stage.degradations,
    )


def promised(gm: fx.GraphModule, regenerated: Mapping[int, int]) -> tuple[Layout | None, ...]:
    """The layouts of the results; what the runner makes of them itself, the graph no longer returns."""
    marks = take_marks_off(gm)
    layouts = drop_input_views(gm, layouts_of(gm), regenerated)
    return tuple(
        replace(layout, marks=marks.get(place, ())) if layout is not None else None
        for place, layout in enumerate(layouts)
    )


def pass_context(stage: Stage, kind: str | None = None) -> PassContext:
    """What passes get to see, where this code generator is to follow: the one that was asked for, if none is
    named.
    """
    settings, kind_after = stage.settings, kind or codegen_kind(stage)
    device = get_device(stage.device)
    return PassContext(
        switches=settings.switches(
            kind_after, has_streams=device.has_streams, limits_cores=device.limits_cores
        ),
        inputs=stage.inputs,
        user_pre_pass=settings.user_pre_pass,
        user_post_pass=settings.user_post_pass,
        config=settings.config,
        observe=observer_of(stage, kind),
        verify=_verifier if settings.verify else None,
        without=stage.detours.passes,
        named=settings.named_passes,
        order=settings.order,
        scope={} if settings.captures else settings.session_scope,
        compute=partial(evaluate_now, device=stage.device),
        tallies=stage.tallies,
        degradations=stage.degradations,
    )


def observer_of(stage: Stage, kind: str | None) -> Observer | None:
    """Who sees the graph after each pass: the files of the compile, and who asked for it."""
    watching = [stage.observe, stage.watch.observe if kind is None else None]
    observers = [observe for observe in watching if observe is not None]

    def observe_all(title: str, graph: Any) -> None:
        for observe in observers:
            observe(title, graph)

    return observe_all if observers else None


def _verifier(graph: Any) -> None:
    """FX checks FX graphs, our verifier GE graphs."""
    if isinstance(graph, Graph):
        verify(graph)
        verify_emitted(graph)
    else:
        graph.graph.lint()


def convert_to_ge(gm: fx.GraphModule, stage: Stage, context: PassContext) -> Graph:
    """FX -> GE graph, and the passes over it."""
    infer = inference(stage.fake_mode, stage.device)
    graph, stage.report = convert(
        gm,
        infer,
        stage.fake_mode,
        name=stage.name,
        fold_views=stage.settings.fold_views,
        layouts=stage.layouts,
        opaque=stage.detours.nodes,
        soc=stage.settings.soc,
    )
    stage.show("convert", graph)
    stage.watch.ir(ORIGINAL, graph)
    stage.ge_graph = run(GE_PASSES, graph, context)
    stage.watch.ir(OPTIMIZED, graph)
    if ge_verify.EVERY_GRAPH:
        verify_emitted(graph)
    return graph


def warn_fallbacks(stage: Stage) -> None:
    """Each op that has no converter is less than promised."""
    told = stage.detours.nodes.values()
    untold = [r for r in stage.report.fallbacks if r.why not in told]
    losses = [r for r in untold if not r.is_of_type and not r.is_told_by_another]
    causes = dict.fromkeys((r.op, r.why, r.source) for r in losses)
    for op, why, source in causes:
        what = f"{op} has no converter here and is carried through as it is: {why}"
        stage.degradations.add(what, at=source, next="register_fx_node_ge_converter takes one")


def lower_to_aten(graph: Graph, gm: fx.GraphModule, stage: Stage) -> fx.GraphModule:
    """GE graph -> FX' of ATen calls, taken apart as the code generator wants them."""
    inputs = placeholders(gm)
    named = [(node.name, node.meta["val"]) for node in inputs]
    lowered = lower(graph, named, stage.fake_mode, stage.device, lowering_table(lowered_for(stage)))
    for node, given in zip(placeholders(lowered), inputs, strict=True):
        # Which argument of the user's it is.
        node.meta |= {"desc": given.meta["desc"]} if "desc" in given.meta else {}
    return lowered


def static_kernels(gm: fx.GraphModule, stage: Stage, contract: OutputLayouts) -> StaticShapeCompiler | None:
    """Who makes programs for single shapes, if asked for; from the graph before memory is planned."""
    settings = stage.settings
    if not settings.static_kernels or stage.backward:
        return None
    if settings.dumps:
        stage.degradations.add(dump_programs.NO_STATIC_KERNELS)
        return None
    if has_scopes(gm):  # the compiler of kernels would drop them
        stage.degradations.add("static_kernel_compile has no effect on a graph with scopes")
        return None
    return StaticShapeCompiler(
        copy_graph(gm),
        stage.name,
        CodegenOptions(
            stage.static, decomposed=False, tuned=True, cached=not settings.static_kernels_uncached
        ),
        contract,
        stage.degradations,
        root=outputs_below(settings.static_kernel_folder),
        wanted=partial(is_wanted, settings.static_kernel_symbol, settings.static_kernel_values),
    )


def gear_programs(lowered: fx.GraphModule, stage: Stage, gears: Gears, contract: OutputLayouts) -> Specialist:
    """Who compiles the graph for each gear: with the code generator that was asked for, or in the background
    where none was.
    """
    binding = Binding(stage.inputs)
    # In training, programs of a forward and its backward would have to be taken together.
    is_alone = stage.is_inference and not stage.backward
    is_sent = stage.serves_first and is_alone and not has_scopes(lowered)
    if is_sent and not worker_unsupported_reason(lowered):
        return better_gears(lowered, stage, contract, lambda args: gears.of(args, binding) in gears)

    def make(gm: fx.GraphModule, inputs: list[Any], fake_mode: FakeTensorMode) -> Program:
        piece = replace(stage, inputs=inputs, fake_mode=fake_mode, ge_graph=None, observe=None, gears=None)
        piece.serves_first = False
        return to_program(gm, gm, piece)

    return GearPrograms(copy_graph(lowered), gears, binding, contract, stage.degradations, make)


def codegen_kind(stage: Stage) -> str:
    """The code generator to start with."""
    settings = stage.settings
    if settings.run_eagerly or (settings.dumps and settings.captures):
        return "eager"
    if stage.interprets:
        return "reference"
    if settings.codegen == "reference":
        what = "engine_config.codegen='reference' has no effect: there is no IR of this graph to interpret"
        stage.degradations.add(what, next="mode='max-autotune' makes IR" if settings.captures else "")
        return "eager"
    if settings.codegen != "auto":
        return settings.codegen
    if stage.device.type == "cpu" and settings.captures and not stage.backward and stage.calls >= MANY_CALLS:
        return "native"
    return get_device(stage.device).codegen(captures=settings.captures)


def lowered_for(stage: Stage) -> str:
    """Who runs the graph that lowering makes: ops stay whole for the eager program."""
    return "eager" if stage.is_whole else codegen_kind(stage)


def to_program(lowered: fx.GraphModule | None, gm: fx.GraphModule, stage: Stage) -> Program:
    """FX' -> Program, by the code generator that was asked for."""
    settings = stage.settings
    is_tunable = can_be_tuned(gm if lowered is None else lowered, stage)
    if settings.run_eagerly:
        logger.warning("%s runs eagerly, op by op: debug.run_eagerly is set", stage.name)
        return build("eager", gm, stage.inputs)
    if stage.ge_graph is not None and stage.interprets:
        return dump_programs.reference(stage.ge_graph, gm, stage)
    assert lowered is not None, "only the reference program needs no lowered graph"

    # What has gears is served by their programs; Inductor's cache would fix the sizes that it asks about.
    asked_for = codegen_kind(stage) if stage.gears is None else "eager"

    def make(kind: str, way: Candidate | None = None, folder: str = "") -> Program:
        graph = lowered
        if kind == "eager" and not (settings.captures and asked_for == "eager"):
            graph = run(LOWERED_PASSES, copy_graph(lowered), pass_context(stage, kind))
        how = CodegenOptions(
            static=stage.static,
            frozen=settings.frozen_parameter,
            guarded=stage.guarded and not stage.backward,
            decomposed=stage.uses_ir and not stage.is_whole,
            backward=stage.backward,
            inference=stage.is_inference,
            tuned=not settings.captures,
            folder=folder,
            options={} if way is None else way.options,
            kept_only=way is None and settings.codegen != kind,
        )
        if has_scopes(graph):
            if kind in COMPILERS:
                return streamed(graph, stage.fake_mode, kind, how, stage.degradations)
            check_units(graph, None)  # here no block is a unit of code
        program = build(kind, graph, stage.inputs, how)
        custom = [node for node in graph.graph.nodes if is_custom(node.target)]
        if kind != "inductor" or not custom or any(map(written_by, graph.graph.nodes)):
            return program
        return Doubted(program, code_of(make("eager")), stage.degradations, source_of(custom[0]))

    if stage.serves_first:
        return make("eager")
    tuned = tuned_program(make, lowered, stage) if is_tunable else None
    return tuned or _with_fall_back(make, asked_for, stage)


def _with_fall_back(make: Callable[[str], Program], kind: str, stage: Stage) -> Program:
    """A code generator that cannot serve the graph is followed by the next one."""
    while kind in NEXT:
        try:
            return make(kind)
        except Exception as error:
            if isinstance(error, PassFailed) or is_of_user(error):
                raise
            why = f"{type(error).__name__}: {first_line(error)}"
            text = f"{kind} could not compile the graph ({why}); it runs with codegen={NEXT[kind]!r}"
            # A library that nobody asked for is a bonus: that there is none is nothing to worry about.
            if kind == "native" and stage.settings.codegen == "auto":
                logger.info("%s: %s", stage.name, text)
            else:
                logger.error("%s: %s", stage.name, text)
                stage.detours.say(f"codegen {kind}", text)
            kind = NEXT[kind]
    return make(kind)


def input_facts(gm: fx.GraphModule, stage: Stage) -> InputInfo:
    """Roles, key and aliases of the flat inputs."""
    packs = tuple(node.meta[HOST_LIST] for node in placeholders(gm) if HOST_LIST in node.meta)
    return inputs_of(gm, stage.inputs, stage.static, packs, stage.layouts, stage.guarded, stage.names)
