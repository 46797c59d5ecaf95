"""Keep an op correct that reads one argument in the memory that it writes through another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.operators.alias_schema import can_auto_functionalize, with_shared
from torchair.core.torch_private.operators.schemas import OpOverload, OpOverloadPacket
from torchair.fxgraph.effects import arguments, flat, written_names
from torchair.passes.pass_manager import PassContext

BUILT_IN = ("aten", "prim", "prims")


def has_shared_arguments(gm: torch.nn.Module) -> bool:
    """Return whether the graph calls such an op; most programs have none."""
    return any(_read_as_written(node) for part in _parts(gm) for node in part.graph.nodes)


def tell_shared_arguments(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Declare such arguments as written, so that AOTAutograd makes all of them parts of one copy."""
    changed = 0
    for part in _parts(gm):
        for node in part.graph.nodes:
            aliased = _aliased_op(node)
            if aliased is not None:
                node.target = aliased
                changed += 1
        part.recompile()
    return changed


def _parts(gm: torch.nn.Module) -> list[fx.GraphModule]:
    """Return the graph and the graphs of its branches and loops."""
    return [part for part in gm.modules() if isinstance(part, fx.GraphModule)]


def _aliased_op(node: fx.Node) -> OpOverload | None:
    """Return the op to call instead of the node's op."""
    op, names = _op_of(node), _read_as_written(node)
    return with_shared(op, names) if op is not None and names else None


def _read_as_written(node: fx.Node) -> list[str]:
    """Return the read-only arguments of a custom op that share memory with an argument that it writes."""
    op = _op_of(node)
    if op is None or not can_auto_functionalize(op):
        return []
    written = written_names(op)
    given = [(argument, list(_tensors(value))) for argument, value in arguments(node, op)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensors in given for tensor in tensors):
        return []  # it may have a backward, which follows its own schema
    memory = {
        _memory(tensor) for argument, tensors in given if argument.name in written for tensor in tensors
    }
    return [
        argument.name
        for argument, tensors in given
        if argument.name not in written
        and "List" not in str(argument.type)
        and any(_memory(tensor) in memory for tensor in tensors)
    ]


def _op_of(node: fx.Node) -> OpOverload | None:
    """Return the custom op that is called; an op with several overloads is not supported here."""
    target = node.target
    if isinstance(target, OpOverloadPacket) and len(target.overloads()) == 1:
        target = getattr(target, target.overloads()[0])
    return target if isinstance(target, OpOverload) and target.namespace not in BUILT_IN else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in flat(value):
        seen = item.meta.get("example_value") if isinstance(item, fx.Node) else None
        if isinstance(seen, torch.Tensor):
            yield seen


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
