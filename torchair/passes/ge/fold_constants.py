"""What depends on constants alone is computed when the graph is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchair import ge
from torchair.core import dtypes
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.fxgraph.external_constants import HELD
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.graph import Graph, Op, Tensor
from torchair.ge.host import Host
from torchair.passes.ge.dead_code import acts
from torchair.passes.pass_manager import PassContext

MAX_BYTES = 1 << 16
"""A larger result is computed in every call: code generators that fuse make it where it is read."""
MAX_WORK = 1 << 24
"""Nor is what needs a larger one on the way."""
# What they make of numbers is as quickly made as read.
MAKERS = frozenset({"Fill", "Range", "Eye", "Cast", "Reshape", "ExpandDims", "BroadcastTo", "Unsqueeze"})

UNSET = "Empty"
"""It gives whatever is in memory, and only when it runs torch says whether that is to be filled."""


def fold_constants(graph: Graph, ctx: PassContext) -> int:
    """How many ops have become constants. The ops that they were computed by stay for who removes dead ops;
    a result of the graph stays, too: it is new in every call.
    """
    if ctx.compute is None:
        return 0
    constant = _constant_ops(graph)
    wanted = _wanted(graph, constant)
    if not wanted:
        return 0
    values: dict[Tensor, Any] = {}
    with disable_modes():
        for op in _cone(wanted, constant):
            values.update(zip(op.outputs, ctx.compute(op, values), strict=True))
        return sum(_replace(graph, op, values) for op in wanted)


def _constant_ops(graph: Graph) -> dict[Op, bool]:
    """The ops that depend on constants alone, in order; and whether more than numbers went into them."""
    found: dict[Op, bool] = {}
    for op in graph.ops:
        if op.type == "Const" and HELD not in op.attrs:
            found[op] = isinstance(op.outputs[0].meta, torch.Tensor)
        elif _is_pure(op) and _bytes(op) <= MAX_WORK and all(tensor.op in found for tensor in op.inputs):
            found[op] = op.type not in MAKERS or any(found[tensor.op] for tensor in op.inputs)
    return found


def _is_pure(op: Op) -> bool:
    is_alone = not op.subgraphs and not op.after and not acts(op) and op.type != UNSET
    return is_alone and bool(op.inputs) and bool(op.outputs)


def _wanted(graph: Graph, constant: Mapping[Op, bool]) -> list[Op]:
    """Those that somebody reads who is not constant, and whose results are tensors worth keeping."""
    read = {tensor.op for op in graph.ops if op not in constant for tensor in op.inputs}
    returned = {tensor.op for tensor in graph.returned}
    return [
        op
        for op, is_worth_it in constant.items()
        if op.type != "Const" and is_worth_it and op in read - returned and _fits(op)
    ]


def _fits(op: Op) -> bool:
    return _bytes(op) <= MAX_BYTES and all(
        isinstance(value := tensor.meta, torch.Tensor) and tensor.dtype == dtypes.to_ge(value.dtype)
        for tensor in op.outputs
    )


def _bytes(op: Op) -> float:
    """How large its results are; of what is no plain tensor of known size, beyond all bounds."""
    made: list[Any] = [tensor.meta for tensor in op.outputs if not isinstance(tensor.meta, Host)]
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in made):
        return float("inf")
    if any(is_symbol(size) for value in made for size in value.shape):
        return float("inf")
    return sum(value.numel() * value.element_size() for value in made)


def _cone(wanted: list[Op], constant: Mapping[Op, bool]) -> list[Op]:
    """All that has to be computed for these, in order."""
    needed, waiting = set[Op](), list(wanted)
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
    return [op for op in constant if op in needed]


def _replace(graph: Graph, op: Op, values: Mapping[Tensor, Any]) -> int:
    """Let who reads the op read constants instead, which stand where it stands. Constants are on the device
    of the graph: what FX has elsewhere stays.
    """
    if not all(_is_as_promised(tensor, values[tensor]) for tensor in op.outputs):
        return 0
    place = graph.ops.index(op)
    for tensor in op.outputs:
        value = values[tensor].detach().cpu().contiguous()
        with graph:
            # Not readable, so it is no other constant of the same value, which may stand behind its reader.
            made: Tensor = ge.Const(value, readable=False)
        made.op.origin = op.origin
        made.desc.attrs.update(tensor.desc.attrs)
        graph.ops.insert(place, graph.ops.pop())
        graph.replace(tensor, made)
    return 1


def _is_as_promised(tensor: Tensor, value: Any) -> bool:
    """Is it a tensor on the device where FX has it?"""
    promised = tensor.meta
    if not isinstance(value, torch.Tensor) or not isinstance(promised, torch.Tensor):
        return False
    return value.device.type == promised.device.type
