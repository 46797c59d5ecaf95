"""Nested compile regions become part of the graph that calls them.

`torch.compiler.nested_compile_region` makes Dynamo and AOTAutograd trace a repeated layer once. They hand on
a call per layer; converters and passes are to see every op of every layer, as without the mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private import auto_functionalized_v2

_REGION: Any = torch.ops.higher_order.invoke_subgraph
_COPY = torch.ops.aten.copy_.default


@dataclass
class _Call:
    """One call of a region: what it is called with, and how what it wrote gets back into the bases."""

    region: fx.Node
    operands: list[Any]
    bases: list[Any] = field(default_factory=list)
    # By operand: its base, and how that looks with the operand's new content in it.
    written: dict[int, tuple[int, Callable[[Any, Any], Any]]] = field(default_factory=dict)


def inline_regions(gm: fx.GraphModule) -> int:
    """How many calls of regions were replaced. The values of all nodes have to be made anew then."""
    count = 0
    waiting = list(gm.graph.nodes)
    while waiting:
        node = waiting.pop()
        if _is_region(node):
            with gm.graph.inserting_before(node):
                waiting += _replace(gm, node, _call(gm, node))
            count += 1
    if count:
        for attribute in gm.graph.find_nodes(op="get_attr"):
            if not attribute.users:
                gm.graph.erase_node(attribute)
        used = {str(attribute.target).partition(".")[0] for attribute in gm.graph.find_nodes(op="get_attr")}
        for name in [name for name, _ in gm.named_children() if name not in used]:
            delattr(gm, name)
        gm.graph.lint()
        gm.recompile()
    return count


def _is_region(node: fx.Node) -> bool:
    wrapped = node.target is auto_functionalized_v2 and node.args[0] is _REGION
    return node.op == "call_function" and (wrapped or node.target is _REGION)


def _call(gm: fx.GraphModule, node: fx.Node) -> _Call:
    if node.target is _REGION:
        region, _, *operands = node.args
        return _Call(region, operands)  # type: ignore[arg-type]
    given: Any = node.kwargs
    call = _Call(given["subgraph"], [], list(given["_all_bases"]))
    for at in range(len(_body(gm, call.region).graph.find_nodes(op="placeholder"))):
        index = given.get(f"_arg{at}_base_index")
        if index is None:
            call.operands.append(given[f"arg{at}"])
            continue
        view, scatter = _view(gm.graph, given, f"_arg{at}_")
        call.operands.append(view(call.bases[index]))
        call.written[at] = index, scatter
    return call


def _view(
    graph: fx.Graph, given: dict[str, Any], prefix: str
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """An operand of its base, and the base with new content in the operand's place."""
    aten = torch.ops.aten
    if given.get(prefix + "slice_dim") is not None:
        where = tuple(given[prefix + part] for part in ("slice_dim", "slice_start", "slice_end"))
        view, scatter = aten.slice.Tensor, aten.slice_scatter.default
    elif given.get(prefix + "size") is not None:
        where = tuple(given[prefix + part] for part in ("size", "stride", "storage_offset"))
        view, scatter = aten.as_strided.default, aten.as_strided_scatter.default
    else:
        return lambda base: base, lambda base, new: new
    return (
        lambda base: graph.call_function(view, (base, *where)),
        lambda base, new: graph.call_function(scatter, (base, new, *where)),
    )


def _body(gm: fx.GraphModule, region: fx.Node) -> Any:
    return gm.get_submodule(str(region.target))


def _replace(gm: fx.GraphModule, node: fx.Node, call: _Call) -> list[fx.Node]:
    """The nodes that came in."""
    body = _body(gm, call.region)
    placeholders = body.graph.find_nodes(op="placeholder")
    known: dict[fx.Node, Any] = dict(zip(placeholders, call.operands, strict=True))
    came: list[fx.Node] = []
    for inner in body.graph.nodes:
        if inner.op in ("placeholder", "output"):
            continue
        if inner.target is _COPY and inner.args[0] in placeholders:
            # The last thing a region does is to write what it changed: that is a result of the call.
            known[inner.args[0]] = known[inner.args[1]]
            continue
        known[inner] = gm.graph.node_copy(inner, known.__getitem__)
        came.append(known[inner])
        if inner.op == "get_attr":
            known[inner].target = _attribute(gm, f"{call.region.target}.{inner.target}")
    returned = body.graph.output_node().args[0]
    results = [known[value] if isinstance(value, fx.Node) else value for value in returned]
    for at, (index, scatter) in call.written.items():
        call.bases[index] = scatter(call.bases[index], known[placeholders[at]])
    results += call.bases
    for user in list(node.users):
        assert user.target is getitem, "a region returns a tuple"
        _take(user, results[user.args[1]])  # type: ignore[index]
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
    return came


def _attribute(gm: fx.GraphModule, path: str) -> str:
    """What a region has under its path, as the graph's own."""
    owner, _, name = path.rpartition(".")
    own = path.replace(".", "_")
    setattr(gm, own, getattr(gm.get_submodule(owner), name))
    return own


def _take(node: fx.Node, value: Any) -> None:
    """This value in the place of the node: another node, or None and numbers."""
    if isinstance(value, fx.Node):
        node.replace_all_uses_with(value)
        return
    for user in list(node.users):
        user.args = fx.node.map_aggregate(user.args, lambda arg: value if arg is node else arg)  # type: ignore[assignment]
        user.kwargs = fx.node.map_aggregate(user.kwargs, lambda arg: value if arg is node else arg)  # type: ignore[assignment]
