"""copy_(input, f(input, …)) -> f_(input, …): a new value of an input is written where the input is.

A KV cache update then writes its few rows and nothing else. Fires only when nobody reads the old value
afterwards: neither
the input itself nor any view of it.
"""

from __future__ import annotations

import torch
from torch import fx

from torchair.core.torch_private import OpOverload, find_overload, storage_id
from torchair.passes.run import PassContext

aten = torch.ops.aten


def reinplace_input_mutated_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """One epilogue `copy_` after the other, first written first."""
    changed = 0
    for copy in list(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)):
        target, value = copy.args[0], copy.args[1]
        if not (isinstance(target, fx.Node) and target.op == "placeholder" and isinstance(value, fx.Node)):
            continue
        twin = in_place_twin(value, target)
        if twin is None:
            continue
        why_not = _why_not(gm, copy, target, value)
        if why_not is not None:
            ctx.skip(value, why_not)
            continue
        value.target = twin
        value.meta["val"] = target.meta["val"]
        copy.replace_all_uses_with(value)
        gm.graph.erase_node(copy)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def in_place_twin(value: fx.Node, target: fx.Node) -> OpOverload | None:
    """`aten.index_copy_.default` for an `aten.index_copy.default` on `target`, when the two take the same
    arguments.
    """
    op = value.target
    if (
        not isinstance(op, OpOverload)
        or op._schema.is_mutable
        or not value.args
        or value.args[0] is not target
    ):
        return None
    namespace, name = op._schema.name.split("::")
    twin = find_overload(f"{namespace}.{name}_.{op._overloadname}")
    if twin is None or [a.name for a in twin._schema.arguments] != [a.name for a in op._schema.arguments]:
        return None
    mutated = [a.name for a in twin._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return twin if mutated == [twin._schema.arguments[0].name] else None


def _why_not(gm: fx.GraphModule, copy: fx.Node, target: fx.Node, value: fx.Node) -> str | None:
    old, new = target.meta["val"], value.meta["val"]
    if old.dtype != new.dtype or old.shape != new.shape:
        return "the new value has another dtype or shape than the input"
    order = {node: number for number, node in enumerate(gm.graph.nodes)}
    storage = storage_id(old)
    for node in gm.graph.nodes:
        if node is copy or order[node] <= order[value]:
            continue
        if any(_is_view(other, storage) and other is not value for other in node.all_input_nodes):
            return f"{node.name} still reads the old value"
    if _reads_twice(value, storage):
        return "the op reads the input through another argument as well"
    return None


def _is_view(node: fx.Node, storage: int) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and storage_id(value) == storage


def _reads_twice(value: fx.Node, storage: int) -> bool:
    rest = [*value.args[1:], *value.kwargs.values()]
    flat = [part for item in rest for part in (item if isinstance(item, list | tuple) else [item])]
    return any(isinstance(part, fx.Node) and _is_view(part, storage) for part in flat)
