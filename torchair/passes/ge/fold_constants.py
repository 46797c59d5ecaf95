"""Compute ops that depend only on constants when the graph is compiled."""

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
"""Largest result in bytes; larger ones are computed in every call, fused into their readers."""
MAX_WORK = 1 << 24
"""Largest intermediate result in bytes."""
# Computing their results from numbers is as fast as reading them.
MAKERS = frozenset({"Fill", "Range", "Eye", "Cast", "Reshape", "ExpandDims", "BroadcastTo", "Unsqueeze"})

UNSET = "Empty"
"""`Empty` returns uninitialized memory; only at run time torch decides whether to fill it."""


def fold_constants(graph: Graph, ctx: PassContext) -> int:
    """Replace ops by constants; return how many were replaced.

    Ops that only fed them stay until dead ops are removed. A result of the graph stays, too: it is a new
    tensor in every call.
    """
    if ctx.compute is None:
        return 0
    constant = _constant_ops(graph)
    foldable = _foldable(graph, constant)
    if not foldable:
        return 0
    values: dict[Tensor, Any] = {}
    with disable_modes():
        for op in _cone(foldable, constant):
            values.update(zip(op.outputs, ctx.compute(op, values), strict=True))
        return sum(_replace(graph, op, values) for op in foldable)


def _constant_ops(graph: Graph) -> dict[Op, bool]:
    """Map each op that depends only on constants, in order, to whether it depends on more than numbers."""
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


def _foldable(graph: Graph, constant: Mapping[Op, bool]) -> list[Op]:
    """Return the constant ops with a non-constant reader whose results are tensors worth storing."""
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
    """Return the size of the results in bytes, or infinity if they are not plain tensors of known size."""
    results: list[Any] = [tensor.meta for tensor in op.outputs if not isinstance(tensor.meta, Host)]
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in results):
        return float("inf")
    if any(is_symbol(size) for value in results for size in value.shape):
        return float("inf")
    return sum(value.numel() * value.element_size() for value in results)


def _cone(foldable: list[Op], constant: Mapping[Op, bool]) -> list[Op]:
    """Return all ops that these depend on, in order."""
    needed, waiting = set[Op](), list(foldable)
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
    return [op for op in constant if op in needed]


def _replace(graph: Graph, op: Op, values: Mapping[Tensor, Any]) -> int:
    """Make the readers of an op read constants instead, inserted at its position.

    Constants are on the device of the graph: results that FX has on another device stay.
    """
    if not all(_is_on_device(tensor, values[tensor]) for tensor in op.outputs):
        return 0
    place = graph.ops.index(op)
    for tensor in op.outputs:
        value = values[tensor].detach().cpu().contiguous()
        with graph:
            # Not readable, so that it is not merged with an equal constant, which may come after its reader.
            result: Tensor = ge.Const(value, readable=False)
        result.op.origin = op.origin
        result.desc.attrs.update(tensor.desc.attrs)
        graph.ops.insert(place, graph.ops.pop())
        graph.replace(tensor, result)
    return 1


def _is_on_device(tensor: Tensor, value: Any) -> bool:
    """Return whether the value is a tensor on the device where FX has it."""
    expected = tensor.meta
    if not isinstance(value, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return False
    return value.device.type == expected.device.type
