"""Nodes that come from ops in scopes stand in scopes again; a stream waits for what its nodes read, and for
what they were told to wait for.

In the IR the edges of the graph are the order, on whatever streams ops run: no wait can be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.fxgraph.partition import dependencies, is_free
from torchair.ops.streams import scope_analysis, stream_ops
from torchair.passes.fx.streams.drop_hint_scopes import has_cores
from torchair.passes.pass_manager import PassContext

ops = torch.ops.air
Clock = dict[str | None, int]
"""For each stream, the position up to which it is done."""


def place_scopes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """How many scopes were opened."""
    graph = gm.graph
    scopes = {node: _scope(node, ctx) for node in graph.nodes if node.op == "call_function"}
    if not any(scopes.values()):
        return 0
    _order_streams(graph, scopes)
    opened, current = 0, dict[str, str]()
    for node in list(graph.nodes):
        is_mark = node.target in stream_ops.ALL
        wanted = node.meta.get(scope_analysis.SCOPE, {}) if is_mark else scopes.get(node, {})
        ends = node.op == "output"
        if wanted == current or (
            not ends and (node.op != "call_function" or (not is_mark and is_free(node)))
        ):
            continue
        with graph.inserting_before(node):
            if current:
                graph.call_function(ops.scope_exit.default)
            if wanted:
                graph.call_function(ops.scope_enter.default, (list(wanted), list(wanted.values())))
        opened += bool(wanted)
        current = wanted
    gm.recompile()
    return opened


def _scope(node: fx.Node, ctx: PassContext) -> dict[str, str]:
    """The attributes that act on this device."""
    found: dict[str, str] = {**ctx.scope, **node.meta.get(scope_analysis.SCOPE, {})}
    idle = () if ctx.switches.get("has_streams", True) else (stream_ops.LABEL, stream_ops.PRIORITY)
    if stream_ops.CORE_LIMITS[0] in found and not has_cores(ctx, source_of(node)):
        idle = (*idle, *stream_ops.CORE_LIMITS)
    return {key: value for key, value in found.items() if key not in idle}


def _order_streams(graph: fx.Graph, scopes: Mapping[fx.Node, dict[str, str]]) -> None:
    """A token behind what another stream needs, and a wait for it there, unless it is known to be done."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    label = {node: scope.get(stream_ops.LABEL) for node, scope in scopes.items()}
    needed = _needs(graph)
    clocks: dict[str | None, Clock] = {}
    done: dict[fx.Node, Clock] = {}
    tokens: dict[fx.Node, fx.Node] = {}
    for node in [node for node in graph.nodes if node in scopes and not is_free(node)]:
        here = label[node]
        clock = clocks.setdefault(here, {})
        for before in sorted(needed[node], key=position.__getitem__, reverse=True):
            there = label[before]
            if there == here or clock.get(there, -1) >= position[before]:
                continue
            token = tokens.get(before) or _record(graph, before, scopes[before])
            tokens[before] = token
            _wait(graph, node, token, scopes[node])
            for stream, place in done[before].items():
                clock[stream] = max(clock.get(stream, -1), place)
        clock[here] = position[node]
        done[node] = dict(clock)


def _needs(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """What must be done before each node that runs: data, memory, and what it was told to wait for; all of
    them nodes that run.
    """
    found: dict[fx.Node, set[fx.Node]] = {}
    for node, before in dependencies(graph).items():
        due = {*before, *(other for other in node.meta.get(scope_analysis.AFTER, ()) if other in found)}
        found[node] = {
            last for other in due for last in (found[other] if is_free(other) else (other,)) if last in found
        }
    return found


def _record(graph: fx.Graph, behind: fx.Node, scope: dict[str, str]) -> fx.Node:
    with graph.inserting_after(behind):
        token = graph.call_function(ops.record.default)
    token.meta[scope_analysis.SCOPE] = scope
    return token


def _wait(graph: fx.Graph, before: fx.Node, token: fx.Node, scope: dict[str, str]) -> None:
    with graph.inserting_before(before):
        wait = graph.call_function(ops.wait.default, ([token],))
    wait.meta[scope_analysis.SCOPE] = scope
