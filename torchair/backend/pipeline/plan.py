"""Decide how one graph is compiled: its route, its code generators, and what is dumped of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from torchair.backend.pipeline.context import CompileFxArgs, CompilePlan, Context, Fallbacks, GraphInfo, Route
from torchair.backend.pipeline.normalize import normalize_graph
from torchair.backend.settings.settings import Settings
from torchair.capture import Policy
from torchair.debug.dumps.dump_plan import DumpPlan, plan_of
from torchair.debug.observer.compile_observer import CompileObserver
from torchair.devices import get_device
from torchair.fxgraph.symbols import has_symbols

MANY_CALLS = 40
"""A recording on the CPU of so many calls is worth a native library, if there is one on disk: it saves the
Python between kernels, 2.7 us for each layer of an MLP, in every call. To build one takes 11 to 30 s on two
cores."""


def new_context(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    request: CompileFxArgs | None = None,
    *,
    fallbacks: Fallbacks | None = None,
    observer: CompileObserver | None = None,
) -> tuple[fx.GraphModule, Context]:
    """Return a normalized copy of `gm`, and the context of an attempt to compile it."""
    graph, info = normalize_graph(gm, inputs)
    return graph, context_of(info, settings, request, fallbacks=fallbacks, observer=observer)


def context_of(
    info: GraphInfo,
    settings: Settings,
    request: CompileFxArgs | None = None,
    *,
    fallbacks: Fallbacks | None = None,
    observer: CompileObserver | None = None,
) -> Context:
    """Return the context of an attempt to compile a graph with these facts."""
    request, fallbacks = request or CompileFxArgs(), fallbacks or Fallbacks()
    plan, settings = make_plan(info, settings, request, fallbacks)
    observer = observer or CompileObserver(
        settings.debug, None, settings.captures, fallbacks.degradations, info.name
    )
    return Context(settings, info, plan, request, fallbacks, observer)


def replan(ctx: Context, info: GraphInfo) -> Context:
    """Return the context once passes have changed the facts about the graph."""
    if info.has_raw_as_strided == ctx.info.has_raw_as_strided:
        return replace(ctx, info=info)
    plan, settings = make_plan(info, ctx.settings, ctx.request, ctx.fallbacks)
    return replace(ctx, info=info, plan=plan, settings=settings)


def make_plan(
    info: GraphInfo, settings: Settings, request: CompileFxArgs, fallbacks: Fallbacks
) -> tuple[CompilePlan, Settings]:
    """Decide how a graph is compiled. A graph of which nothing is dumped has settings without dumps."""
    if settings.is_untouched:
        return CompilePlan(Route.UNTOUCHED, "eager"), settings
    has_ir = not settings.captures and not fallbacks.without_ir and not info.has_raw_as_strided
    dump = _dump_plan(info, settings, has_ir, fallbacks)
    if settings.dumps and not settings.captures and dump is None:
        settings = settings.without_dumps()
    if settings.captures:
        route = Route.CAPTURE
    elif not has_ir:
        route = Route.ATEN
    else:
        route = Route.INTERPRET if settings.codegen == "reference" or dump else Route.IR
    codegen = _codegen(route, info, settings, request, fallbacks)
    tier1 = () if route is Route.INTERPRET else _tier1(info, settings, request)
    return CompilePlan(route, codegen, tier1, route is Route.IR and not tier1, dump), settings


def _dump_plan(info: GraphInfo, settings: Settings, has_ir: bool, fallbacks: Fallbacks) -> DumpPlan | None:
    """Return which ops of the IR are dumped in graph mode, or None."""
    if settings.captures or not settings.dumps:
        return None
    if settings.run_eagerly or not has_ir:
        fallbacks.degradations.add(
            "dump_config dumps ops of the IR, and a graph runs without it: nothing is dumped",
            next="debug.data_dump dumps any graph",
        )
        return None
    plan = plan_of(settings.debug, fallbacks.degradations)
    return plan if plan is not None and plan.takes(info.name) else None


def _codegen(
    route: Route, info: GraphInfo, settings: Settings, request: CompileFxArgs, fallbacks: Fallbacks
) -> str:
    if settings.run_eagerly or (settings.dumps and settings.captures):
        return "eager"
    if route is Route.INTERPRET:
        return "reference"
    if settings.codegen == "reference":
        what = "engine_config.codegen='reference' has no effect: there is no IR of this graph to interpret"
        fallbacks.degradations.add(what, next="mode='max-autotune' makes IR" if settings.captures else "")
        return "eager"
    if settings.codegen != "auto":
        return settings.codegen
    is_forward = settings.captures and not request.is_backward
    if info.device.type == "cpu" and is_forward and info.num_calls >= MANY_CALLS:
        return "native"
    return get_device(info.device).codegen(captures=settings.captures)


def _tier1(info: GraphInfo, settings: Settings, request: CompileFxArgs) -> tuple[str, ...]:
    """Return the code generators of the optimized program; none where the first program stays."""
    if settings.codegen != "auto" or settings.waits or settings.tuning is not None:
        return ()
    if settings.run_eagerly or settings.dumps:
        return ()
    is_training = request.is_backward or not request.is_inference
    # The library of a forward would have to be swapped in together with one of its backward.
    betters = get_device(info.device).betters
    return tuple(kind for kind in betters if kind != "native" or not is_training)


def recording_policy(ctx: Context, num_ops: int) -> Policy:
    """Return how recordings of a graph are made; that may depend on how many ops it has."""
    policy = ctx.settings.policy(
        backward=ctx.request.is_backward,
        inference=ctx.request.is_inference,
        sized_ops=num_ops if has_symbols(ctx.inputs) else None,
    )
    buckets = ctx.request.buckets
    if buckets is None:
        return policy
    # Sizes that were announced come again.
    return replace(policy, patience=0, capture_limit=max(policy.capture_limit, len(buckets.rows)))


def records(policy: Policy, ctx: Context) -> bool:
    """Are recordings made of the graph?"""
    return policy.capture and get_device(ctx.device).why_no_graphs() is None
