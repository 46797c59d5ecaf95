"""Serve at once, then get better: the first calls of a graph are served by its eager program, while a better
one is built in the background.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from torchair.backend.background import Job, Limits, Task
from torchair.backend.kept import Kept, Wanted
from torchair.backend.order import Made, Order, likes_of, symbols_of
from torchair.backend.stage import Stage
from torchair.backend.static_kernels import StaticKernels
from torchair.backend.surroundings import Surroundings
from torchair.capture.promised import Promised
from torchair.capture.roles import KeyPart
from torchair.codegen import How, load
from torchair.codegen.backing import Ground
from torchair.codegen.fitting import Fitting
from torchair.codegen.graph import is_custom
from torchair.core.errors import first_line
from torchair.core.log import logger
from torchair.core.program import Program, code_of
from torchair.core.torch_private.fake import dump_graph
from torchair.core.torch_private.ops import OpOverload
from torchair.core.torch_private.symbols import Symbols
from torchair.devices import device_row
from torchair.fxgraph.contract import Contract
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.held import has_held
from torchair.fxgraph.symbols import Binding

SAME_NUMBERS = {"fallback_random": True}
"""With these options Inductor draws the random numbers that ops draw when they run one by one."""
BY_NAME = "engine_config.codegen='inductor' builds it in the first call"


def better_kinds(stage: Stage) -> tuple[str, ...]:
    """Who is asked for a better program than the eager one, one after the other; none where nobody is."""
    settings = stage.settings
    if settings.codegen != "auto" or settings.waits or settings.tuning is not None:
        return ()
    if settings.run_eagerly or settings.is_untouched or settings.dumps or stage.interprets:
        return ()
    is_training = stage.backward or not stage.is_inference
    # A library of a forward would have to be taken together with one of its backward.
    return tuple(kind for kind in device_row(stage.device).betters if kind != "native" or not is_training)


def why_not_elsewhere(gm: fx.GraphModule) -> str:
    """The reason why no other process can compile a graph; empty where one can."""
    if has_held(gm):
        return "constants of the graph are held outside of it"
    for node in gm.graph.nodes:
        if node.op == "call_function" and not _is_known(node.target):
            return f"{node.target} is known in this process alone"
        if node.op == "call_function" and node.is_impure() and not written_by(node) and not draws(node):
            return f"{node.target} does more than to compute"
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


@dataclass(frozen=True)
class Better:
    """A better program than the eager one for a graph: kept from before, or to be built."""

    gm: fx.GraphModule
    """A copy that was sent nowhere yet."""
    stage: Stage
    limits: Limits
    binding: Binding
    ground: Ground

    @staticmethod
    def of(gm: fx.GraphModule, stage: Stage) -> Better | None:
        """None where there shall be none."""
        limits = _limits(stage)
        if limits.seconds == 0:
            return None
        try:
            ground = Ground.of(gm)
            better = Better(ground.graph(gm), stage, limits, Binding(stage.inputs), ground)
            return better if better.wanted else None
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            stage.degradations.add(f"a better program is not ordered: {why}", next=BY_NAME, here=True)
            return None

    @cached_property
    def wanted(self) -> Wanted:
        """What it is made of."""
        stage, around = self.stage, Surroundings.now()
        symbols = Symbols.of(symbols_of(stage.inputs))
        likes = likes_of(stage.inputs, self.ground.device_there)
        return Wanted(self.gm, likes, _how(self.gm, stage), better_kinds(stage), symbols, around)

    @cached_property
    def kept(self) -> Kept | None:
        """Where it is kept; None where nothing is."""
        size = self.stage.settings.program_cache_mb
        return Kept.of(self.wanted.facts(), size << 20) if size else None

    def found(self, eager: Callable[[], Program]) -> Program | None:
        """The program, if there is one on disk that is soon loaded: a library. What it does not fit is served
        by the eager one.
        """
        made = self.kept.get() if self.kept is not None else None
        if not isinstance(made, Made) or made.code.kind != "native":
            return None
        try:
            program = load(made.code)
        except Exception as error:
            what = (
                f"a program of an earlier process cannot be loaded, and is built again: {first_line(error)}"
            )
            self.stage.degradations.add(what, here=True)
            return None
        logger.event("%s: %s program from an earlier process", self.stage.name, program.kind)
        return self._fitting(program, made, eager)

    def _fitting(self, program: Program, made: Made, eager: Callable[[], Program]) -> Program:
        program = self.ground.program(program)
        if not made.conditions:
            return program
        return Fitting(program, code_of(eager()), made.conditions, self.binding)

    def ordered(
        self,
        served_by: Program,
        promise: tuple[Contract, tuple[KeyPart, ...]],
        guard: Callable[[Program, Stage], Program],
    ) -> Job:
        """Have it built."""
        stage, wanted, kept, (contract, key) = self.stage, self.wanted, self.kept, promise

        def finish(program: Program, made: Made) -> Program:
            fitting = self._fitting(program, made, lambda: served_by)
            return Promised(guard(fitting, stage), replace(contract, is_eager=False), key, stage.degradations)

        job = Job(
            Task(
                stage.name,
                lambda: Order(
                    dump_graph(wanted.gm),
                    wanted.likes,
                    wanted.how,
                    wanted.kinds,
                    wanted.symbols,
                    wanted.surroundings,
                ),
                finish,
                lambda why: stage.degradations.add(f"a better program is not {why}", next=BY_NAME, here=True),
                self.limits,
                stage.together,
                find=lambda: None if kept is None else kept.get(),
                keep=lambda made: None if kept is None else kept.put(made),
            )
        )
        if kept is not None and kept.is_there:
            job.wanted()  # there is nothing to build
        return job


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
