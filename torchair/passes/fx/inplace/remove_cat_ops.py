"""cat([f(x), g(y)]) along dim 0 -> f and g write directly into their parts of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, faking
from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.fxgraph.effects import mutates
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import walk
from torchair.passes.fx.analysis.alias_analysis import Memory, same_sizes, tensor
from torchair.passes.fx.analysis.size_nodes import Sizes
from torchair.passes.fx.analysis.stream_order import Order
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten


def remove_cat_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove a cat if every producer has an `out=` overload; other readers of a producer read the part."""
    changed = 0
    for cat in list(gm.graph.find_nodes(op="call_function", target=aten.cat.default)):
        if _dim(cat) != 0 or len(cat.args[0]) < 2:
            continue
        why_not = _why_not(gm.graph, cat)
        if why_not is not None:
            ctx.skip(cat, why_not)
            continue
        _rewrite(gm.graph, cat)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def out_overload(op: Any) -> OpOverload | None:
    """Return the overload that takes the same arguments and one `out`."""
    if not isinstance(op, OpOverload) or mutates(op) or len(op._schema.returns) != 1:
        return None
    namespace, name = op._schema.name.split("::")
    overloads = ("out",) if op._overloadname == "default" else (f"{op._overloadname}_out", "out")
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in overloads:
        found = find_overload(f"{namespace}.{name}.{overload}")
        if found is None:
            continue
        *rest, last = found._schema.arguments
        if last.name == "out" and last.is_out and [(a.name, str(a.type)) for a in rest] == wanted:
            return found
    return None


def _dim(cat: fx.Node) -> Any:
    return cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)


def _why_not(graph: fx.Graph, cat: fx.Node) -> str | None:
    sources: Sequence[Any] = cat.args[0]  # type: ignore[assignment]
    if len(set(sources)) != len(sources):
        return "one value is concatenated twice"
    result, sizes, memory, order = tensor(cat), Sizes(graph), Memory(graph), Order(graph)
    if result is None or not all(sizes.knows(size) for size in result.shape):
        return "its size is not known before it is computed"
    for source in sources:
        why_not = _why_not_source(source, cat, result, sizes, memory)
        if why_not is not None:
            return f"{source}: {why_not}"
    first = min(sources, key=memory.position.__getitem__)
    if any(not _is_ordered(order, cat, first, source) for source in sources):
        return "no event orders a producer on another stream after the allocation of the result"
    return None


def _why_not_source(
    source: Any, cat: fx.Node, result: torch.Tensor, sizes: Sizes, memory: Memory
) -> str | None:
    value = tensor(source)
    if not isinstance(source, fx.Node) or source.op != "call_function" or value is None:
        return "it is not computed in the graph"
    if out_overload(source.target) is None:
        return f"{source.target} has no out= overload with the same arguments"
    if any(user.target is aten.cat.default and user is not cat for user in source.users):
        return "another cat reads it"
    if value.dtype != result.dtype or value.device != result.device:
        return "its dtype or device differs from the result's"
    if value.dim() != result.dim() or not same_sizes(value.shape[1:], result.shape[1:]):
        return "its sizes differ from the result's"
    if not sizes.knows(value.shape[0]):
        return "its size is not known before it is computed"
    if memory.is_returned(source):
        return "the graph returns it, and it would share memory with the result"
    if any(member.target is aten.as_strided.default for member in memory.group(source)):
        return "it is read with its own strides"
    return None


def _is_ordered(order: Order, cat: fx.Node, first: fx.Node, source: fx.Node) -> bool:
    """Return whether `source` may write into a result allocated on the cat's stream just before `first`."""
    if not order.many or order.stream[source] == order.stream[cat]:
        return True
    # The memory may have served the cat's stream until here. Everything before the graph is done: all streams
    # start after it.
    here = [node for node in order.position if order.stream[node] == order.stream[cat]]
    before = [node for node in here if order.position[node] < order.position[first]]
    used = [node for node in before if node.target not in stream_ops.ALL]
    return not used or order.is_before(used[-1], source)


def _rewrite(graph: fx.Graph, cat: fx.Node) -> None:
    sources: Sequence[fx.Node] = cat.args[0]  # type: ignore[assignment]
    position = {node: number for number, node in enumerate(graph.nodes)}
    first = min(sources, key=position.__getitem__)
    # Insert outside scopes that do not contain the cat. Sizes come from inputs, so all parts can be there.
    scopes = dict(walk(graph))
    first = next((scope for scope in scopes[first] if scope not in scopes[cat]), first)
    with graph.inserting_before(first):
        result = _allocate(graph, cat, first)
        parts = _parts(graph, result, [source.meta["val"].shape[0] for source in sources])
    for source, part in zip(sources, parts, strict=True):
        source.replace_all_uses_with(part)
        source.target = out_overload(source.target)  # type: ignore[assignment]
        source.kwargs = {**source.kwargs, "out": part}
        source.meta["val"] = part.meta["val"]
    cat.replace_all_uses_with(result)
    graph.erase_node(cat)


def _allocate(graph: fx.Graph, cat: fx.Node, first: fx.Node) -> fx.Node:
    """Allocate the result without content, on the stream of the cat."""
    value, sizes = cat.meta["val"], Sizes(graph)
    scopes = dict(walk(graph))
    inner = next((s for s in reversed(scopes[cat]) if stream_ops.is_stream_scope(s)), None)
    moves = inner is not None and inner not in scopes[first]
    shape = [sizes.node(size) for size in value.shape]
    if moves:
        graph.call_function(inner.target, inner.args, dict(inner.kwargs))  # type: ignore[arg-type, union-attr]
    options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    output = graph.call_function(aten.empty.memory_format, (shape,), options)
    if moves:
        graph.call_function(_exit_of(inner.target))  # type: ignore[union-attr]
    output.meta.update(cat.meta)
    output.meta["val"] = _run(value, lambda: value.new_empty(value.shape))
    return output


def _exit_of(enter: Any) -> Any:
    return getattr(torch.ops, enter.namespace).scope_exit.default


def _parts(graph: fx.Graph, result: fx.Node, rows: Sequence[Any]) -> list[fx.Node]:
    """Return the slices of the result, in order."""
    sizes, value, parts = Sizes(graph), result.meta["val"], []
    start: Any = 0
    begin: Any = 0
    for count in rows:
        stop, end = sizes.node(start + count), start + count
        part = graph.call_function(aten.slice.Tensor, (result, 0, begin, stop))
        part.meta["val"] = _run(value, lambda low=start, high=end: aten.slice.Tensor(value, 0, low, high))
        parts.append(part)
        start, begin = end, stop
    return parts


def _run(like: torch.Tensor, make: Callable[[], Any]) -> Any:
    mode = detect_fake_mode([like])
    assert mode is not None, "the values of a graph are fake"
    with faking(mode):
        return make()
