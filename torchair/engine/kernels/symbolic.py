"""Size arithmetic on host values. An op here also has an ordinary kernel in its family, for real data."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchair.core import dtypes
from torchair.engine.registry import host_kernels
from torchair.ge.host import Host


def _elementwise(fn: Callable[..., Any], result: torch.dtype | None = None) -> Callable[..., Host]:
    """A host kernel from a function of numbers, with broadcasting between rank 0 and 1."""

    def run(*operands: Host, **attrs: Any) -> Host:
        dtype = result or operands[0].dtype
        length = max((len(operand.items) for operand in operands if operand.ndim), default=None)
        if length is None:
            return Host(fn(*(operand.value for operand in operands)), dtype)
        columns = [operand.items * length if len(operand.items) == 1 else operand.items for operand in operands]
        return Host(tuple(fn(*row) for row in zip(*columns, strict=True)), dtype)

    return run


def _truncating(a: Any, b: Any) -> Any:
    """Division toward zero for integers (sizes are not negative, so floor does), true division for floats."""
    return a / b if isinstance(a, float | torch.SymFloat) else a // b


def _maximum(a: Any, b: Any) -> Any:
    return torch.sym_max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return torch.sym_min(a, b)


def _cast(x: Host, *, dst_type: int, **_: Any) -> Host | None:
    """Casts between the number types sizes use; others are left to the kernel on data."""
    dtype = dtypes.to_torch(dst_type)
    if dtype.is_floating_point and dtype in (torch.float32, torch.float64):
        convert: Callable[[Any], Any] = torch.sym_float
    elif dtype in (torch.int64, torch.int32) and x.dtype != torch.bool:
        convert = torch.sym_int
    else:
        return None
    items = tuple(convert(item) for item in x.items)
    return Host(items if x.ndim else items[0], dtype)


def _gather(x: Host, indices: Host, axis: Host | None = None, **_: Any) -> Host | None:
    if not x.ndim:
        return None
    picked = tuple(x.items[index] for index in indices.items)
    return Host(picked if indices.ndim else picked[0], x.dtype)


def _pack(x: list[Host], *, axis: int = 0, N: int = 0) -> Host | None:
    if any(item.ndim for item in x):
        return None
    return Host(tuple(item.value for item in x), x[0].dtype)


def _concat(x: list[Host], concat_dim: Host, **_: Any) -> Host | None:
    if not all(item.ndim for item in x):
        return None
    return Host(tuple(number for item in x for number in item.items), x[0].dtype)


def _unpack(x: Host, **_: Any) -> list[Host] | None:
    return [Host(item, x.dtype) for item in x.items] if x.ndim else None


def _product(x: Host, **_: Any) -> Host:
    return Host(math.prod(x.items), x.dtype)


def _total(x: Host, axes: Host, *, keep_dims: bool = False, **_: Any) -> Host | None:
    return Host(sum(x.items), x.dtype) if x.ndim and not keep_dims else None


def _slice(x: Host, begin: Host, end: Host, axes: Host | None, strides: Host | None, **_: Any) -> Host | None:
    if not x.ndim:
        return None
    step = strides.items[0] if strides is not None else 1
    return Host(x.items[begin.items[0] : end.items[0] : step], x.dtype)


def _identity(x: Host, *_: Any, **__: Any) -> Host:
    return x


def _unsqueeze(x: Host, **_: Any) -> Host | None:
    return None if x.ndim else Host(x.items, x.dtype)


def _squeeze(x: Host, **_: Any) -> Host | None:
    return Host(x.items[0], x.dtype) if x.ndim and len(x.items) == 1 else None


def _reshape(x: Host, shape: Host, **_: Any) -> Host | None:
    if len(shape.items) == 0 and shape.ndim:
        return Host(x.items[0], x.dtype)
    return Host(x.items, x.dtype) if len(shape.items) == 1 else None


host_kernels({
    "Add": _elementwise(operator.add), "Sub": _elementwise(operator.sub), "Mul": _elementwise(operator.mul),
    "FloorDiv": _elementwise(operator.floordiv), "Mod": _elementwise(operator.mod), "FloorMod": _elementwise(operator.mod),
    "Div": _elementwise(_truncating), "RealDiv": _elementwise(operator.truediv), "Neg": _elementwise(operator.neg),
    "Maximum": _elementwise(_maximum), "Minimum": _elementwise(_minimum), "Pow": _elementwise(operator.pow),
    "Floor": _elementwise(math.floor), "Ceil": _elementwise(math.ceil), "Cast": _cast,
    "Gather": _gather, "GatherV2": _gather, "Pack": _pack, "ConcatV2": _concat, "Unpack": _unpack,
    "ReduceProdD": _product, "ReduceSum": _total, "StridedSliceV2": _slice,
    "Identity": _identity, "TensorMove": _identity, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Reshape": _reshape,
})  # fmt: skip
