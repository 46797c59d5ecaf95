"""Serve at once, then get better: the first calls of a graph are served by its eager program, while a better
one is built in the background.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.context import Context
from torchair.backend.pipeline.multi_stream import StreamSegment, cut_at_scopes, has_scopes, is_outside
from torchair.backend.service.deferred_request import BY_NAME, DeferredRequest, part_of, tell
from torchair.backend.service.program_cache import ProgramCacheEntry, ProgramKey
from torchair.backend.service.request import CompileRequest, CompileResult, symbols_of, tensor_metadata_of
from torchair.backend.service.scheduler import (
    CompileBudget,
    CompileTask,
    Job,
    LoadedResult,
    Subtask,
    SwapGroup,
)
from torchair.backend.service.torch_state import TorchState
from torchair.backend.specialize.static_shapes import StaticShapeCompiler
from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.codegen import CodegenOptions, load
from torchair.codegen.base.graph_prep import is_custom
from torchair.codegen.base.guarded_program import Fitting
from torchair.codegen.eager import generate
from torchair.codegen.inductor.device_mapping import DeviceMapping
from torchair.core.errors import first_line, is_of_user
from torchair.core.log import logger
from torchair.core.program import Code, Program, code_of
from torchair.core.torch_private.fake.fake_tensors import dump_graph
from torchair.core.torch_private.fake.symbol_table import Symbols
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.external_constants import has_external
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.symbols import Binding, unbacked_in

SAME_NUMBERS = {"fallback_random": True}
"""With these options Inductor draws the random numbers that ops draw when they run one by one."""


def worker_unsupported_reason(gm: fx.GraphModule) -> str:
    """The reason why no other process can compile a graph, or what is between its scopes; empty where one
    can.
    """
    if has_external(gm):
        return "constants of the graph are held outside of it"
    if has_scopes(gm) and any(unbacked_in(node.meta.get("val")) for node in gm.graph.nodes):
        return "what is between its scopes has sizes that only the data decides"
    for node in itertools.filterfalse(is_outside, gm.graph.nodes):
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
class CompileUnit:
    """A graph that is compiled by itself: all of one, or a piece between two borders of scopes."""

    wanted: ProgramKey
    ground: DeviceMapping
    binding: Binding
    most_bytes: int
    other: Code | None = None
    """Who serves where a program does not fit; the eager program of the whole graph if nobody is named."""

    @staticmethod
    def of(
        gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions, ctx: Context, other: Code | None
    ) -> CompileUnit:
        """A copy that was sent nowhere yet."""
        ground = DeviceMapping.of(gm)
        symbols = Symbols.of(symbols_of(inputs))
        likes = tensor_metadata_of(inputs, ground.device_there)
        wanted = ProgramKey(ground.graph(gm), likes, how, ctx.plan.tier1, symbols, TorchState.now())
        return CompileUnit(wanted, ground, Binding(inputs), ctx.settings.program_cache_mb << 20, other)

    @cached_property
    def kept(self) -> ProgramCacheEntry | None:
        """Where its program is kept; None where nothing is."""
        return ProgramCacheEntry.of(self.wanted.facts(), self.most_bytes) if self.most_bytes else None

    def library(self) -> LoadedResult | None:
        """The program, if there is one on disk that is soon loaded."""
        made = self.kept.get() if self.kept is not None else None
        if not isinstance(made, CompileResult) or made.code.kind != "native":
            return None
        return LoadedResult(load(made.code), made)

    def part(self) -> Subtask:
        """To have it built."""
        return part_of(self.order, self.kept)

    def order(self) -> CompileRequest:
        """What a compiler is given."""
        wanted = self.wanted
        return CompileRequest(
            dump_graph(wanted.gm), wanted.likes, wanted.how, wanted.kinds, wanted.symbols, wanted.surroundings
        )

    def fitting(self, built: LoadedResult, eager: Callable[[], Program]) -> Program:
        """What was built, for the graph's own device and all sizes."""
        program, conditions = self.ground.program(built.program), built.made.conditions
        if not conditions:
            return program
        return Fitting(program, self.other or code_of(eager()), conditions, self.binding)


@dataclass(frozen=True)
class TieredCompile:
    """A better program than the eager one for a graph: kept from before, or to be built."""

    ctx: Context
    limits: CompileBudget
    sources: Sequence[CompileUnit]
    join: Callable[[Sequence[Program]], Program]
    """The program of the graph, of those of its sources."""

    @staticmethod
    def of(gm: fx.GraphModule, ctx: Context) -> TieredCompile | None:
        """None where there shall be none."""
        limits = _limits(ctx)
        if limits.seconds == 0:
            return None
        try:
            if has_scopes(gm):
                better = TieredCompile(ctx, limits, *_pieces(gm, ctx))
            else:
                source = CompileUnit.of(gm, ctx.inputs, _how(gm, ctx, ctx.request.static_inputs), ctx, None)
                better = TieredCompile(ctx, limits, [source], _alone)
            return better if better.sources else None
        except Exception as error:
            if is_of_user(error):
                raise
            why = f"{type(error).__name__}: {first_line(error)}"
            ctx.degradations.add(f"a better program is not ordered: {why}", next=BY_NAME, here=True)
            return None

    def found(self, eager: Callable[[], Program]) -> Program | None:
        """The program, if all of it is on disk and soon loaded: libraries. What they do not fit is served by
        the eager one.
        """
        built: list[LoadedResult] = []
        try:
            for source in self.sources:
                library = source.library()
                if library is None:
                    return None
                built.append(library)
        except Exception as error:
            what = (
                f"a program of an earlier process cannot be loaded, and is built again: {first_line(error)}"
            )
            self.ctx.degradations.add(what, here=True)
            return None
        logger.event("%s: %s program from an earlier process", self.ctx.name, built[0].program.kind)
        return self._joined(built, eager)

    def _joined(self, built: Sequence[LoadedResult], eager: Callable[[], Program]) -> Program:
        pairs = zip(self.sources, built, strict=True)
        return self.join([source.fitting(each, eager) for source, each in pairs])

    def ordered(
        self,
        served_by: Program,
        promise: tuple[OutputLayouts, tuple[KeyPart, ...]],
        guard: Callable[[Program], Program],
    ) -> Job:
        """Have it built."""
        ctx, (contract, key) = self.ctx, promise

        def finish(built: Sequence[LoadedResult]) -> Program:
            joined = self._joined(built, lambda: served_by)
            return LayoutEnforcer(guard(joined), replace(contract, is_eager=False), key, ctx.degradations)

        job = Job(
            CompileTask(
                ctx.name,
                [source.part() for source in self.sources],
                finish,
                tell(ctx.degradations),
                self.limits,
                ctx.request.swap_group or SwapGroup(),
                functools.cache(self._recipe),
            )
        )
        if all(source.kept is not None and source.kept.is_there for source in self.sources):
            job.wanted()  # there is nothing to build
        return job

    def _recipe(self) -> DeferredRequest | None:
        if self.join is not _alone or self.ctx.info.reads_storage:
            return None
        (source,) = self.sources
        wanted, most = source.wanted, source.most_bytes
        return DeferredRequest(
            source.order(), wanted.facts(), most, source.ground, source.binding, self.limits
        )


def _alone(programs: Sequence[Program]) -> Program:
    """Of one source."""
    return programs[0]


def _pieces(
    gm: fx.GraphModule, ctx: Context
) -> tuple[Sequence[CompileUnit], Callable[[Sequence[Program]], Program]]:
    """What is between the scopes of a graph, each compiled by itself, and how they are put together. Pieces
    that are to be deterministic compute the very same in every call: their ops run.
    """
    whole = cut_at_scopes(gm, ctx.info.fake_mode, ctx.request.static_inputs, ctx.degradations)
    eager = {slot: generate(slot.gm) for slot in whole.slots}
    sources: dict[StreamSegment, CompileUnit] = {}
    for slot in whole.slots:
        with slot.limited():
            if not slot.is_empty and not torch.are_deterministic_algorithms_enabled():
                how = _how(slot.gm, ctx, slot.static)
                sources[slot] = CompileUnit.of(slot.gm, slot.inputs, how, ctx, eager[slot])

    def join(programs: Sequence[Program]) -> Program:
        made = dict(zip(sources, programs, strict=True))
        held = {
            slot: slot.held(made.get(slot) or eager[slot].load(), ctx.degradations) for slot in whole.slots
        }
        return whole.filled(held, programs[0].kind)

    return list(sources.values()), join


def better_gears(
    gm: fx.GraphModule, ctx: Context, contract: OutputLayouts, wanted: Callable[[Sequence[Any]], bool]
) -> StaticShapeCompiler:
    """Who orders better programs for single sizes of `gm`, of which some are wanted."""
    limits = _limits(ctx)
    return StaticShapeCompiler(
        copy_graph(gm),
        ctx.name,
        _how(gm, ctx, ctx.request.static_inputs),
        contract,
        ctx.degradations,
        wanted=lambda args: limits.seconds != 0 and wanted(args),
        kinds=ctx.plan.tier1,
        limits=limits,
        at_once=False,
    )


def _limits(ctx: Context) -> CompileBudget:
    """No second is spent where all calls are to compute the very same."""
    budget = 0 if torch.are_deterministic_algorithms_enabled() else ctx.settings.compile_budget
    return CompileBudget(budget, ctx.settings.compile_workers)


def _how(gm: fx.GraphModule, ctx: Context, static: tuple[int, ...]) -> CodegenOptions:
    return CodegenOptions(
        static=static,
        frozen=ctx.settings.frozen_parameter,
        guarded=ctx.request.has_guards and not ctx.request.is_backward,
        decomposed=False,
        backward=ctx.request.is_backward,
        inference=ctx.request.is_inference,
        tuned=not ctx.settings.captures,
        options=SAME_NUMBERS if any(map(draws, gm.graph.nodes)) else {},
    )
