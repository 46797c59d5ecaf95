"""Restore the scopes of nodes that were lowered from ops in scopes, and add the waits between streams.

A stream waits for the values that its nodes read, and for their explicit dependencies. In the IR, the edges
of the graph define the order, whatever streams ops run on, so no wait can be missing.
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
    """Open scopes and add waits; return how many scopes were opened."""
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
    """Return the scope attributes that act on this device."""
    found: dict[str, str] = {**ctx.scope, **node.meta.get(scope_analysis.SCOPE, {})}
    idle = () if ctx.switches.get("has_streams", True) else (stream_ops.LABEL, stream_ops.PRIORITY)
    if stream_ops.CORE_LIMITS[0] in found and not has_cores(ctx, source_of(node)):
        idle = (*idle, *stream_ops.CORE_LIMITS)
    return {key: value for key, value in found.items() if key not in idle}


def _order_streams(graph: fx.Graph, scopes: Mapping[fx.Node, dict[str, str]]) -> None:
    """Record a token after each value that another stream needs, and wait for it there unless it is done."""
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
    """Return the running nodes that must finish before each node: data, memory and explicit dependencies."""
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
