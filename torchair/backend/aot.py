"""Dynamo's side: AOTAutograd with forward, backward and inference compilers around `compile_fx`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchair.backend.compile import compile_fx
from torchair.backend.joint import Joint
from torchair.backend.settings import Settings
from torchair.backend.told import tell_graph
from torchair.capture import Runner
from torchair.core.quick import Written
from torchair.core.torch_private.aot import (
    aot_autograd,
    argument_names,
    default_partition,
    is_autocasting,
    regenerated_outputs,
    static_input_indices,
    written_by_plain_call,
)
from torchair.debug.run_folder import open_model
from torchair.fxgraph.ends import placeholders
from torchair.fxgraph.layout import root_of

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
    plain: list[Callable[..., Any]] = []
    files = open_model(gm, captures=settings.captures)
    example, names = list(inputs), argument_names(gm)
    # Parameters that are saved for backward, and views of them, by the names they have in both graphs.
    stays: set[str] = set()
    # Ops of the program would be cast once more: AOTAutograd switches autocast off around it.
    is_plain = not is_autocasting()
    joint = Joint.of(gm, example, settings.loss_index) if settings.joint_graph else None

    def stage(backward: bool, is_inference: bool) -> Compile:
        def compile_stage(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            phase = "joint" if joint is not None else "backward" if backward else "forward"
            static = _named(gm, stays) if backward else static_input_indices(len(inputs))
            stays.update(() if backward else _views_of(gm, static))
            regenerated = {} if backward else regenerated_outputs(len(inputs))
            tell_graph(gm, inputs, settings, phase)
            with torch.profiler.record_function("npu_fx_compiler inference"):
                runner = compile(
                    gm,
                    inputs,
                    settings,
                    static=static,
                    backward=backward,
                    is_inference=is_inference,
                    guarded=True,
                    regenerated=regenerated,
                    names=names,
                    files=files and files.phase(phase),
                )
            if is_plain and is_inference and (written := written_by_plain_call(len(example))) is not None:
                plain.append(_plain_call(runner, written))
            return _as_function(runner.boxed) if backward else runner.boxed

        return compile_stage

    backend = aot_autograd(
        fw_compiler=stage(backward=False, is_inference=False),
        bw_compiler=stage(backward=True, is_inference=False),
        inference_compiler=stage(backward=False, is_inference=True),
        partition_fn=default_partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=settings.keep_mutations,
    )
    if joint is None:
        compiled = backend(gm, example)
        return plain[0] if plain else compiled
    with torch.no_grad():
        compiled = backend(joint.gm, example)
    return joint.step(plain[0] if plain else compiled)


def _named(gm: fx.GraphModule, names: Collection[str]) -> tuple[int, ...]:
    """The places of the inputs with these names."""
    return tuple(place for place, node in enumerate(placeholders(gm)) if node.name in names)


def _views_of(gm: fx.GraphModule, places: Collection[int]) -> set[str]:
    """The names of what the graph returns of the memory of these inputs."""
    inputs = {node for place, node in enumerate(placeholders(gm)) if place in places}
    returned = gm.graph.output_node().all_input_nodes
    return {node.name for node in returned if root_of(node)[0] in inputs}


def _plain_call(runner: Runner, indices: Sequence[int]) -> Callable[..., Any]:
    """The call as Dynamo makes it, without AOTAutograd's layers around it (a third of the host's time)."""
    written = Written(indices)
    boxed, fast_path = runner.boxed, runner.fast_path(written.packed)

    def run(*args: Any) -> Any:
        if fast_path is not None and (outputs := fast_path(args)) is not None:
            return outputs
        if indices:
            written.raise_versions(args)
        if not torch.is_grad_enabled():
            return boxed(list(args))
        with torch.no_grad():
            return boxed(list(args))

    return run


def _as_function(boxed: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Dynamo wraps the backward callable and keeps the mark `_boxed_call` only on plain functions."""

    def run(args: list[Any]) -> Any:
        return boxed(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
