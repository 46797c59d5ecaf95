"""Nested compile regions become part of the graph that calls them.

`torch.compiler.nested_compile_region` makes Dynamo and AOTAutograd trace a repeated layer once. They hand on
a call per layer; converters and passes are to see every op of every layer, as without the mark. (A call in a
branch or a loop is left to the converters of those.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from torchair.core.native.memory_overlap import is_dense
from torchair.core.torch_private.fake.fake_tensors import statically_known_true
from torchair.core.torch_private.operators.schemas import auto_functionalized_v2
from torchair.fxgraph.placeholders import placeholders

aten = torch.ops.aten
_REGION: Any = torch.ops.higher_order.invoke_subgraph
_COPY = aten.copy_.default
# How a part of a base is described: each name behind that of its argument.
SLICE = ("slice_dim", "slice_start", "slice_end")
STRIDED = ("size", "stride", "storage_offset")


@dataclass
class _Call:
    """One call of a region: what it is called with, and how what it wrote gets back into the bases."""

    region: fx.Node
    operands: list[Any]
    bases: list[Any] = field(default_factory=list)
    # By operand that is written: its base, and where it is a part of that, the base with new content in it.
    written: dict[int, tuple[int, Callable[[Any, Any], Any] | None]] = field(default_factory=dict)


def inline_regions(gm: fx.GraphModule) -> int:
    """How many calls of regions were replaced. The values of all nodes have to be made anew then."""
    count = 0
    waiting = list(gm.graph.nodes)
    while waiting:
        node = waiting.pop()
        if _is_region(node) and not _is_odd(node):
            with gm.graph.inserting_before(node):
                waiting += _replace(gm, node, _call(gm, node))
            count += 1
    if count:
        for attribute in gm.graph.find_nodes(op="get_attr"):
            if not attribute.users:
                gm.graph.erase_node(attribute)
        named = (*gm.graph.find_nodes(op="get_attr"), *gm.graph.find_nodes(op="call_module"))
        used = {str(node.target).partition(".")[0] for node in named}
        for name in [name for name, _ in gm.named_children() if name not in used]:
            delattr(gm, name)
        gm.graph.lint()
        gm.recompile()
    return count


def _is_region(node: fx.Node) -> bool:
    wrapped = node.target is auto_functionalized_v2 and node.args[0] is _REGION
    return node.op == "call_function" and (wrapped or node.target is _REGION)


def _is_odd(node: fx.Node) -> bool:
    """Does it write a part of a tensor with gaps that no indices of that tensor make? Such a call stays, and
    runs on copies.
    """
    given: Any = node.kwargs
    for prefix in (name.removesuffix("stride") for name in given if name.endswith("_stride")):
        base = given["_all_bases"][given[prefix + "base_index"]].meta["val"]
        if _where(given, prefix, base) is None:
            return True
    return False


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
        operand, scatter = _part(gm.graph, given, f"_arg{at}_", call.bases[index])
        call.operands.append(operand)
        call.written[at] = index, scatter
    return call


def _part(
    graph: fx.Graph, given: dict[str, Any], prefix: str, base: Any
) -> tuple[Any, Callable[[Any, Any], Any] | None]:
    """The part of the base that an operand is, and how new content gets there; the base and None if all."""
    if given.get(prefix + "slice_dim") is not None:
        where = tuple(given[prefix + part] for part in SLICE)
        return (
            graph.call_function(aten.slice.Tensor, (base, *where)),
            lambda base, new: graph.call_function(aten.slice_scatter.default, (base, new, *where)),
        )
    if given.get(prefix + "size") is None:
        return base, None
    known = base.meta["val"]
    where = _where(given, prefix, known)
    assert where is not None, "asked in `_is_odd`"
    if is_dense(known) and statically_known_true(known.storage_offset() == 0):
        whole, put_back = (lambda base: base), (lambda base, made: made)
    else:
        layout: dict[str, Any] = {} if is_dense(known) else {"memory_format": torch.contiguous_format}
        whole = lambda base: graph.call_function(aten.clone.default, (base,), layout)  # noqa: E731
        put_back = lambda base, made: graph.call_function(aten.copy.default, (base, made))  # noqa: E731

    def scatter(base: Any, new: Any) -> Any:
        made = graph.call_function(aten.as_strided_scatter.default, (whole(base), new, *where))
        return put_back(base, made)

    return graph.call_function(aten.as_strided.default, (whole(base), *where)), scatter


def _where(given: dict[str, Any], prefix: str, base: torch.Tensor) -> tuple[Any, Any, Any] | None:
    """Sizes, strides and offset of this part in a base without gaps that begins its memory; None where that
    cannot be said.
    """
    sizes, strides, offset = (given[prefix + part] for part in STRIDED)
    first = base.storage_offset()
    if is_dense(base) and statically_known_true(first == 0):
        return sizes, strides, offset
    numbers = (*sizes, *strides, offset, *base.shape, *base.stride(), first)
    if not all(isinstance(number, int) for number in numbers):
        return None
    if is_dense(base):
        return sizes, strides, offset - first
    start, *steps = (_indices(number, base) for number in (offset - first, *strides))
    for dim, size in enumerate(base.shape):
        last = start[dim] + sum(step[dim] * (n - 1) for step, n in zip(steps, sizes, strict=True))
        if last >= size or _distance(start, base) != offset - first:
            return None
    if [_distance(step, base) for step in steps] != list(strides):
        return None
    dense = torch.empty(base.shape, device="meta")
    return sizes, [_distance(step, dense) for step in steps], _distance(start, dense)


def _indices(distance: int, base: torch.Tensor) -> list[int]:
    """How many steps along each dimension of the base lead so far."""
    found = [0] * base.dim()
    for dim in sorted(range(base.dim()), key=base.stride, reverse=True):
        if base.stride(dim) > 0:
            found[dim], distance = divmod(distance, base.stride(dim))
    return found


def _distance(indices: list[int], base: torch.Tensor) -> int:
    return sum(index * stride for index, stride in zip(indices, base.stride(), strict=True))


def _body(gm: fx.GraphModule, region: fx.Node) -> Any:
    return gm.get_submodule(str(region.target))


def _replace(gm: fx.GraphModule, node: fx.Node, call: _Call) -> list[fx.Node]:
    """The nodes that came in."""
    body = _body(gm, call.region)
    inputs = placeholders(body)
    known: dict[fx.Node, Any] = dict(zip(inputs, call.operands, strict=True))
    scatters = {inputs[at]: scatter for at, (_, scatter) in call.written.items()}
    came: list[fx.Node] = []
    for inner in body.graph.nodes:
        if inner.op in ("placeholder", "output"):
            continue
        if inner.target is _COPY and inner.args[0] in scatters:
            # The last thing a region does is to write what it changed: that is a result of the call.
            is_part = scatters[inner.args[0]] is not None
            known[inner.args[0]] = known[inner.args[1]] if is_part else _laid_out(gm.graph, inner, known)
            continue
        known[inner] = gm.graph.node_copy(inner, known.__getitem__)
        came.append(known[inner])
        if inner.op == "get_attr":
            known[inner].target = _attribute(gm, f"{call.region.target}.{inner.target}")
    returned = body.graph.output_node().args[0]
    results = [known[value] if isinstance(value, fx.Node) else value for value in returned]
    for at, (index, scatter) in call.written.items():
        new = known[inputs[at]]
        call.bases[index] = new if scatter is None else scatter(call.bases[index], new)
    results += call.bases
    for user in list(node.users):
        assert user.target is getitem, "a region returns a tuple"
        _take(user, results[user.args[1]])  # type: ignore[index]
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
    return came


def _laid_out(graph: fx.Graph, copy: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """What the copy wrote, with the strides of what it wrote to: later views count on them."""
    old, new = (node.meta["val"] for node in copy.args[:2])  # type: ignore[union-attr]
    target, source = (known[node] for node in copy.args[:2])  # type: ignore[index]
    if all(statically_known_true(a == b) for a, b in zip(old.stride(), new.stride(), strict=True)):
        return source
    return graph.call_function(aten.copy.default, (target, source))


def _attribute(gm: fx.GraphModule, path: str) -> str:
    """What a region has under its path, as the graph's own."""
    owner, _, name = path.rpartition(".")
    value = getattr(gm.get_submodule(owner), name)
    own = path.replace(".", "_")
    while getattr(gm, own, value) is not value:
        own += "_"
    setattr(gm, own, value)
    return own


def _take(node: fx.Node, value: Any) -> None:
    """This value in the place of the node: another node, or None and numbers."""
    if isinstance(value, fx.Node):
        node.replace_all_uses_with(value)
        return
    for user in list(node.users):
        user.args = fx.node.map_aggregate(user.args, lambda arg: value if arg is node else arg)  # type: ignore[assignment]
        user.kwargs = fx.node.map_aggregate(user.kwargs, lambda arg: value if arg is node else arg)  # type: ignore[assignment]
