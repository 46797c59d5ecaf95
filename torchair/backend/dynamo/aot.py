"""Dynamo's side: AOTAutograd with forward, backward and inference compilers around `compile_fx`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from torchair.backend.dynamo.log_graph import log_graph
from torchair.backend.dynamo.train_step import TrainStepGraph
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.runtime.runtime_wrapper import RuntimeWrapper
from torchair.backend.service.scheduler import SwapGroup
from torchair.backend.settings.settings import Settings
from torchair.backend.specialize.size_buckets import Gears, gears_of, has_gears
from torchair.core.diagnostics import Diagnostics
from torchair.core.source_location import graph_location
from torchair.core.torch_private.compilers.aot_autograd import (
    aot_autograd,
    argument_names,
    default_partition,
    is_autocasting,
    keeping_checkpoints,
    recompute_checkpoints,
    regenerated_outputs,
    static_input_indices,
    take_over_sources,
    work_around_call,
    written_inputs,
)
from torchair.core.torch_private.operators.schemas import resizes_kept_whole
from torchair.debug.observer.debug_dir import ModelFiles, open_model
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.placeholders import placeholders
from torchair.ops.distributed.distributed_calls import trace_collectives
from torchair.passes import DYNAMO_PASSES, PassContext, run
from torchair.passes.fx.inplace.aliased_arguments import has_shared_arguments
from torchair.passes.fx.streams.native_streams import around_events, has_native_streams
from torchair.passes.pass_manager import PassFailed
from torchair.passes.patterns.sets.registry import set_of

# Whoever traces has imported this module, and Dynamo meets these calls before it asks for a compiler.
trace_collectives()

Decompositions = Mapping[Any, Callable[..., Any]]
Compile = Callable[..., Any]


def compile_dynamo(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    decompositions: Decompositions,
    compile: Compile = compile_fx,
) -> Callable[..., Any]:
    """Compile a Dynamo graph, or any module with real inputs: every part that AOTAutograd makes of it, or
    forward and backward as one graph where that is asked for.
    """
    files = open_model(gm, captures=settings.captures)
    gears = _gears(gm, inputs, settings)
    gm = before_autograd(gm, settings)
    joint = TrainStepGraph.of(gm, inputs, settings.loss_index) if settings.joint_graph else None
    if joint is None:
        parts = AOTCompiler(settings, compile, files, argument_names(gm), len(inputs), gears=gears)
        return around_events(parts.made_of(gm, inputs, decompositions), gm)
    if gears is not None:
        what = "forward and backward as one graph have a program for all sizes, and none for each gear"
        Diagnostics(settings.strict, graph_location(gm)).add(what, here=True)
    parts = AOTCompiler(settings, compile, files, argument_names(gm), len(inputs), forward="joint")
    with torch.no_grad(), keeping_checkpoints():
        return around_events(joint.step(parts.made_of(joint.gm, inputs, decompositions)), gm)


def _gears(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings) -> Gears | None:
    """The gears of a graph; that there are none where they have no effect is told."""
    if not has_gears(inputs):
        return None
    degradations = Diagnostics(settings.strict, graph_location(gm))
    if not settings.captures:
        return gears_of(gm, inputs, settings.gears_policy, degradations)
    what = "set_dim_gears has no effect in this mode, which records each size that comes"
    degradations.add(what, next="config.mode = 'max-autotune' has gears", here=True)
    return None


def before_autograd(gm: fx.GraphModule, settings: Settings) -> fx.GraphModule:
    """What passes make of the graph while it is Dynamo's; the graph as it is where one of them fails."""
    takes_numbers = set_of(settings.config).takes_numbers
    needs_pass = has_native_streams(gm) or has_shared_arguments(gm)
    if not settings.fuses_before_autograd and not takes_numbers and not needs_pass:
        return gm
    made = copy_graph(gm)
    take_over_sources(made, gm)
    degradations = Diagnostics(settings.strict, graph_location(gm))
    switches = {"experimental_config.npu_fx_pass": settings.fuses_before_autograd}
    context = PassContext(
        switches, named=settings.named_passes, degradations=degradations, config=settings.config
    )
    try:
        return run(DYNAMO_PASSES, made, context)
    except PassFailed as error:
        degradations.add(f"{error.what}; the graph is compiled without it", here=True)
        return gm


@dataclass
class AOTCompiler:
    """What AOTAutograd makes of one graph, each part compiled when it is there."""

    settings: Settings
    compile: Compile
    files: ModelFiles | None
    names: tuple[str, ...]  # of the user's arguments
    count: int  # of inputs
    forward: str = "forward"  # what the first part is called
    gears: Gears | None = None
    # Parameters that are saved for backward, and views of them, by the names they have in both graphs.
    stays: set[str] = field(default_factory=set[str])
    together: SwapGroup = field(default_factory=SwapGroup)
    kept: RuntimeWrapper | None = None

    def made_of(
        self, gm: fx.GraphModule, inputs: Sequence[Any], decompositions: Decompositions
    ) -> Callable[..., Any]:
        """What Dynamo calls: AOTAutograd's layers around the parts, or one part alone where they do little.
        Under autocast they switch it off, as ops of a program would be cast once more.
        """
        without_autocast = is_autocasting()
        backend = aot_autograd(
            fw_compiler=self._stage(backward=False, is_inference=False),
            bw_compiler=self._stage(backward=True, is_inference=False),
            inference_compiler=self._stage(backward=False, is_inference=True),
            partition_fn=default_partition,
            decompositions=dict(decompositions),
            keep_inference_input_mutations=self.settings.keep_mutations,
        )
        with nullcontext() if self.settings.captures else resizes_kept_whole():
            compiled = backend(gm, list(inputs))
        if self.kept is None:
            return compiled
        kept = replace(self.kept, without_autocast=without_autocast)
        call = kept.call()
        # For those who keep what was compiled: a function takes attributes.
        call.kept = kept  # type: ignore[attr-defined]
        return call

    def _stage(self, backward: bool, is_inference: bool) -> Compile:
        phase = "backward" if backward else self.forward

        def compile_stage(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            gm = gm if self.forward == "forward" else self._with_checkpoints(gm)
            static = _named(gm, self.stays) if backward else static_input_indices(len(inputs))
            self.stays.update(() if backward else _views_of(gm, static))
            regenerated = {} if backward else regenerated_outputs(len(inputs))
            log_graph(gm, inputs, self.settings, phase)
            with torch.profiler.record_function("npu_fx_compiler inference"):
                runner = self.compile(
                    gm,
                    inputs,
                    self.settings,
                    CompileFxArgs(
                        static_inputs=static,
                        is_backward=backward,
                        is_inference=is_inference,
                        has_guards=True,
                        input_aliases=regenerated,
                        arg_names=self.names,
                        debug_files=self.files and self.files.phase(phase),
                        buckets=self.gears,
                        swap_group=None if is_inference else self.together,
                    ),
                )
            if is_inference and (work := work_around_call(gm, self.count)) is not None:
                self.kept = RuntimeWrapper(runner, written_inputs(), *work)
            return _as_function(runner.boxed) if backward else runner.boxed

        return compile_stage

    def _with_checkpoints(self, gm: fx.GraphModule) -> fx.GraphModule:
        made, why_not = recompute_checkpoints(gm)
        if why_not:
            degradations = Diagnostics(self.settings.strict, graph_location(gm))
            degradations.add(f"what is checkpointed is kept and not computed again: {why_not}", here=True)
        return made


def _named(gm: fx.GraphModule, names: Collection[str]) -> tuple[int, ...]:
    """The places of the inputs with these names."""
    return tuple(place for place, node in enumerate(placeholders(gm)) if node.name in names)


def _views_of(gm: fx.GraphModule, places: Collection[int]) -> set[str]:
    """The names of what the graph returns of the memory of these inputs."""
    inputs = {node for place, node in enumerate(placeholders(gm)) if place in places}
    returned = gm.graph.output_node().all_input_nodes
    return {node.name for node in returned if root_of(node)[0] in inputs}


def _as_function(boxed: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Dynamo wraps the backward callable and keeps the mark `_boxed_call` only on plain functions."""

    def run(args: list[Any]) -> Any:
        return boxed(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
