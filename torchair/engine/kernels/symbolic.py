"""Size arithmetic on host values. These ops also have an ordinary kernel in their family, for real data."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core import dtypes
from torchair.engine.registry import host_kernels
from torchair.fxgraph.size_nodes import SYM_MATH
from torchair.ge.host import Host, is_symbol

# Host arithmetic is exact only for these; everything else is computed as data.
_NUMBER_DTYPES = (torch.int64, torch.int32, torch.float32, torch.float64, torch.bool)
_INT64 = torch.iinfo(torch.int64)


def _elementwise(fn: Callable[..., Any], result: torch.dtype | None = None) -> Callable[..., Host | None]:
    """Create a host kernel from a function of numbers, with broadcasting between rank 0 and 1."""

    def run(*operands: Host, **attrs: Any) -> Host | None:
        dtype = result or operands[-1].dtype
        if not _is_size_arithmetic(operands):
            return None
        length = max((len(operand.items) for operand in operands if operand.ndim), default=None)
        columns = [
            operand.items * (length or 1) if len(operand.items) == 1 else operand.items
            for operand in operands
        ]
        try:
            items = tuple(fn(*row) for row in zip(*columns, strict=True))
        except (ArithmeticError, ValueError):
            return None
        if not all(_fits(item, dtype) for item in items):
            return None
        return Host(items[0] if length is None else items, dtype)

    return run


def _is_size_arithmetic(operands: Sequence[Host]) -> bool:
    """Return whether the operands are sizes.

    Integers and bools always are; floats only with a symbol: float constants are rounded like data.
    """
    if any(operand.dtype not in _NUMBER_DTYPES for operand in operands):
        return False
    has_symbol = any(is_symbol(item) for operand in operands for item in operand.items)
    return has_symbol or not any(operand.dtype.is_floating_point for operand in operands)


def _fits(number: Any, dtype: torch.dtype) -> bool:
    """Return whether a number fits the dtype: Python's integers have no bound.

    A negative power of an integer is a float, which does not fit.
    """
    if is_symbol(number) or dtype.is_floating_point:
        return True
    return isinstance(number, int) and _INT64.min <= number <= _INT64.max


def _truncating(a: Any, b: Any) -> Any:
    """Divide integers toward zero (sizes are not negative, so floor does), and floats exactly."""
    return a / b if isinstance(a, float | torch.SymFloat) else a // b


def _maximum(a: Any, b: Any) -> Any:
    return torch.sym_max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return torch.sym_min(a, b)


def _choose(condition: Any, then: Any, otherwise: Any) -> Any:
    return (
        torch.sym_ite(condition, then, otherwise)
        if is_symbol(condition)
        else (then if condition else otherwise)
    )


def _functions() -> dict[str, Callable[..., Host | None]]:
    """Return functions of symbolic floats by their IR names."""
    return {name.capitalize(): _elementwise(fn) for name, fn in SYM_MATH.items() if name != "log2"}


def _log(x: Host, *, base: float, scale: float, shift: float) -> Host | None:
    return (
        _elementwise(SYM_MATH["log2"])(x)
        if (base, scale, shift) == (2, 1, 0) and "log2" in SYM_MATH
        else None
    )


def _cast(x: Host, *, dst_type: int, **_: Any) -> Host | None:
    """Cast between the number types of sizes; the kernel on data does other casts."""
    dtype = dtypes.to_torch(dst_type)
    if dtype.is_floating_point and dtype in (torch.float32, torch.float64):
        convert: Callable[[Any], Any] = torch.sym_float
    elif dtype in (torch.int64, torch.int32, torch.uint64) and x.dtype != torch.bool:
        convert = torch.sym_int
    else:
        return None
    try:
        items = tuple(convert(item) for item in x.items)
    except (ArithmeticError, ValueError):
        return None
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


def _concat(x: list[Host], concat_dim: Host, **_: Any) -> Host:
    return Host(tuple(number for item in x for number in item.items), x[0].dtype)


def _concat_from(concat_dim: Host, x: list[Host], **_: Any) -> Host:
    return _concat(x, concat_dim)


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


def _unsqueeze(x: Host, *_: Any, **__: Any) -> Host | None:
    return None if x.ndim else Host(x.items, x.dtype)


def _squeeze(x: Host, **_: Any) -> Host | None:
    return Host(x.items[0], x.dtype) if x.ndim and len(x.items) == 1 else None


def _reshape(x: Host, shape: Host, **_: Any) -> Host | None:
    if len(shape.items) == 0 and shape.ndim:
        return Host(x.items[0], x.dtype)
    return Host(x.items, x.dtype) if len(shape.items) == 1 else None


host_kernels({
    "Add": _elementwise(operator.add), "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul), "FloorDiv": _elementwise(operator.floordiv),
    "Mod": _elementwise(operator.mod), "FloorMod": _elementwise(operator.mod),
    "Div": _elementwise(_truncating), "RealDiv": _elementwise(operator.truediv),
    "Neg": _elementwise(operator.neg), "Maximum": _elementwise(_maximum),
    "Minimum": _elementwise(_minimum), "Pow": _elementwise(operator.pow),
    "LeftShift": _elementwise(operator.lshift), "RightShift": _elementwise(operator.rshift),
    "Abs": _elementwise(abs), "Floor": _elementwise(math.floor), "Ceil": _elementwise(math.ceil),
    "Trunc": _elementwise(math.trunc), "Round": _elementwise(round), "Cast": _cast, "Log": _log,
    **_functions(), "Equal": _elementwise(operator.eq, torch.bool),
    "NotEqual": _elementwise(operator.ne, torch.bool), "Less": _elementwise(operator.lt, torch.bool),
    "LessEqual": _elementwise(operator.le, torch.bool), "Greater": _elementwise(operator.gt, torch.bool),
    "GreaterEqual": _elementwise(operator.ge, torch.bool), "LogicalAnd": _elementwise(operator.and_),
    "LogicalOr": _elementwise(operator.or_), "LogicalNot": _elementwise(torch.sym_not),
    "BitwiseAnd": _elementwise(operator.and_), "BitwiseOr": _elementwise(operator.or_),
    "BitwiseXor": _elementwise(operator.xor), "SelectV2": _elementwise(_choose), "Gather": _gather,
    "GatherV2": _gather, "Pack": _pack, "ConcatV2": _concat, "Unpack": _unpack, "ReduceProdD": _product,
    "ReduceSum": _total, "StridedSliceV2": _slice, "Identity": _identity, "TensorMove": _identity,
    "Unsqueeze": _unsqueeze, "ExpandDims": _unsqueeze, "Squeeze": _squeeze, "Reshape": _reshape,
    "Concat": _concat_from,
})  # fmt: skip
