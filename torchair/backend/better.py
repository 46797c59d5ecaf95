"""Serve at once, then get better: the first calls of a graph are served by its eager program, while a better
one is built in the background.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from torchair.backend.background import Job, Limits, Task
from torchair.backend.order import Made, Order, Surroundings, likes_of
from torchair.backend.stage import Stage
from torchair.backend.static_kernels import StaticKernels
from torchair.capture.promised import Promised
from torchair.capture.roles import KeyPart
from torchair.codegen import How
from torchair.codegen.fitting import Fitting
from torchair.codegen.graph import is_custom
from torchair.core.program import Program, code_of
from torchair.core.torch_private.fake import dump_graph
from torchair.core.torch_private.ops import OpOverload
from torchair.core.torch_private.symbols import Symbols
from torchair.devices import device_row
from torchair.fxgraph.contract import Contract
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import draws
from torchair.fxgraph.held import has_held
from torchair.fxgraph.symbols import Binding

SAME_NUMBERS = {"fallback_random": True}
"""With these options Inductor draws the random numbers that ops draw when they run one by one."""
BY_NAME = "engine_config.codegen='inductor' builds it in the first call"


def better_kinds(stage: Stage) -> tuple[str, ...]:
    """Who is asked for a better program than the eager one, one after the other; none where nobody is."""
    settings = stage.settings
    is_other = settings.run_eagerly or settings.is_untouched or settings.dumps or stage.interprets
    if settings.codegen != "auto" or is_other or settings.tuning is not None:
        return ()
    kind = device_row(stage.device).codegen(captures=settings.captures)
    if kind == "eager":
        return ()
    is_bound = stage.device.type == "cpu" and stage.is_inference and not stage.backward
    return ("native", kind) if is_bound else (kind,)


def why_not_elsewhere(gm: fx.GraphModule) -> str:
    """The reason why no other process can compile a graph; empty where one can."""
    if has_held(gm):
        return "constants of the graph are held outside of it"
    for node in gm.graph.nodes:
        if node.op == "call_function" and not _is_known(node.target):
            return f"{node.target} is known in this process alone"
        if node.op in ("call_module", "call_method"):
            return f"{node.target} is no function"
        if node.op == "get_attr" and not isinstance(getattr(gm, str(node.target), None), torch.Tensor):
            return f"{node.target} is no tensor"
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat | torch.SymBool) and node.op == "placeholder":
            return f"{node.name} is no integer"
    return ""


def _is_known(target: Any) -> bool:
    if isinstance(target, OpOverload):
        return not is_custom(target)
    module = getattr(target, "__module__", None) or ""
    return target is operator.getitem or module in (
        "_operator",
        "math",
        "torch",
        "torch.fx.experimental.sym_node",
    )


def better_program(
    gm: fx.GraphModule,
    stage: Stage,
    served_by: Program,
    promise: tuple[Contract, tuple[KeyPart, ...]],
    guard: Callable[[Program, Stage], Program],
) -> Job | None:
    """The order of a better program than the one that serves `gm`; None where there shall be none."""
    limits = _limits(stage)
    if limits.seconds == 0:
        return None
    symbols = Symbols.of(_symbols(stage.inputs))
    likes, around, binding = likes_of(stage.inputs), Surroundings.now(), Binding(stage.inputs)
    sent, how, (contract, key) = _bare(gm), _how(gm, stage), promise

    def finish(program: Program, made: Made) -> Program:
        if made.conditions:
            program = Fitting(program, code_of(served_by), made.conditions, binding)
        return Promised(guard(program, stage), replace(contract, is_eager=False), key, stage.degradations)

    kinds, degradations = better_kinds(stage), stage.degradations
    return Job(
        Task(
            stage.name,
            lambda: Order(dump_graph(sent), likes, how, kinds, symbols, around),
            finish,
            lambda why: degradations.add(f"a better program is not {why}", next=BY_NAME, here=True),
            limits,
            stage.together,
        )
    )


def better_gears(
    gm: fx.GraphModule, stage: Stage, contract: Contract, wanted: Callable[[Sequence[Any]], bool]
) -> StaticKernels:
    """Who orders better programs for single sizes of `gm`, of which some are wanted."""
    limits = _limits(stage)
    return StaticKernels(
        copy_graph(gm),
        stage.name,
        _how(gm, stage),
        contract,
        stage.degradations,
        wanted=lambda args: limits.seconds != 0 and wanted(args),
        kinds=better_kinds(stage),
        limits=limits,
        at_once=False,
    )


def _limits(stage: Stage) -> Limits:
    """No second is spent where all calls are to compute the very same."""
    budget = 0 if torch.are_deterministic_algorithms_enabled() else stage.settings.compile_budget
    return Limits(budget, stage.settings.compile_workers)


def _how(gm: fx.GraphModule, stage: Stage) -> How:
    return How(
        static=stage.static,
        frozen=stage.settings.frozen_parameter,
        guarded=stage.guarded and not stage.backward,
        decomposed=False,
        backward=stage.backward,
        inference=stage.is_inference,
        tuned=not stage.settings.captures,
        options=SAME_NUMBERS if any(map(draws, gm.graph.nodes)) else {},
    )


def _symbols(inputs: list[Any]) -> list[torch.SymInt]:
    numbers = [
        number
        for value in inputs
        for number in ((*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,))
    ]
    return [number for number in numbers if isinstance(number, torch.SymInt)]


def _bare(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph without what is known of its values: they are computed anew."""
    made = copy_graph(gm)
    for node in made.graph.nodes:
        node.meta = {}
    return made
