"""Prepare operands in converters: constants, casts, promotion, dims. These are ATen's rules,
expressed in IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair import ge
from torchair.core import dtypes
from torchair.fxgraph.effects import flat
from torchair.ge.graph import Tensor, current_graph
from torchair.ge.host import Host, is_symbol

INT64 = ge.DataType.DT_INT64
INT32 = ge.DataType.DT_INT32
FLOAT = ge.DataType.DT_FLOAT
BOOL = ge.DataType.DT_BOOL


NEWEST = ("ascend910_95", "ascend950")


def is_newest_chip() -> bool:
    """Return whether the graph targets a chip of the newest family, which has additional ops."""
    return current_graph().soc.lower().startswith(NEWEST)


def cast(x: Any, dtype: int | torch.dtype) -> Tensor:
    """Return `x` in another data type, unchanged if it already has it. Numbers become constants."""
    wanted = dtypes.to_ge(dtype) if isinstance(dtype, torch.dtype) else dtype
    if not isinstance(x, Tensor):
        return ge.Const(x, dtype=wanted)
    return x if x.dtype == wanted else ge.Cast(x, dst_type=wanted)


def as_type(x: Tensor, dtype: int) -> Tensor:
    """Return the bits of `x` as another data type; a change of width scales the last dim."""
    if x.dtype == dtype:
        return x
    return ge.Bitcast(x, type=dtype, keep_dim=dtypes.bits(x.dtype) != dtypes.bits(dtype) or None)


def promote(*operands: Any, to: int | torch.dtype) -> list[Tensor]:
    """Return every operand in the data type `to`."""
    return [cast(operand, to) for operand in operands]


def result_type(*operands: Any) -> torch.dtype:
    """Return ATen's promotion of tensors, 0-dim tensors and Python numbers, from their metas."""
    first, *rest = [_example(operand) for operand in operands]
    dtype = torch.result_type(first, rest[0]) if rest else first.dtype
    return dtype


def _example(operand: Any) -> Any:
    """Return a value with the dtype and 0-dimness of an operand; a symbol counts as a Python number."""
    if not isinstance(operand, Tensor):
        return operand
    assert operand.meta is not None, "operands of a converter have metas"
    if isinstance(operand.meta, Host) and is_symbol(operand.meta.value):
        return 1 if operand.meta.dtype == torch.int64 else 1.0
    return torch.empty((1,) * min(operand.meta.ndim, 1), dtype=operand.meta.dtype)


def torch_dtype(x: Tensor) -> torch.dtype:
    """The torch dtype of a graph tensor."""
    return dtypes.to_torch(x.dtype)


def dim_of(dim: int, rank: int) -> int:
    """Return a dim counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


def dims_of(dims: Sequence[int] | int | None, rank: int) -> list[int]:
    """Return dims counted from the front; None and an empty list mean all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return [dim_of(dim, rank) for dim in listed]


def sizes(x: Tensor) -> tuple[Any, ...]:
    """Return the sizes of a tensor, some of which may be symbols."""
    assert x.meta is not None, "operands of a converter have metas"
    return tuple(_as_constant(size) for size in x.meta.shape)


def _as_constant(size: Any) -> Any:
    """Return a symbol with a constant value as that constant."""
    return int(size.node.expr) if is_symbol(size) and size.node.expr.is_number else size


def static_sizes(x: Tensor) -> list[int] | None:
    """Return the sizes as ints, or None if one of them is a symbol."""
    return None if any(is_symbol(size) for size in sizes(x)) else [int(size) for size in sizes(x)]


def same_size(a: Any, b: Any) -> bool:
    """Return whether two sizes are the same number or expression, without adding a guard."""
    first, second = _as_constant(a), _as_constant(b)
    if is_symbol(first) and is_symbol(second):
        return first.node.expr == second.node.expr
    return not is_symbol(first) and not is_symbol(second) and first == second


def size_of(x: Tensor, dim: int) -> Any:
    """Return one size: an int, or a rank-0 INT64 tensor that computes it."""
    size = sizes(x)[dim]
    if not is_symbol(size):
        return int(size)
    return ge.Gather(ge.Shape(x, dtype=INT64), ge.Const(dim_of(dim, x.rank), dtype=INT64))


def shape_of(x: Tensor) -> Any:
    """Return all sizes: a list of ints, or an INT64 vector that computes them."""
    known = static_sizes(x)
    return known if known is not None else ge.Shape(x, dtype=INT64)


def pack(numbers: Sequence[Any]) -> Any:
    """Return a list of sizes for an IR op: ints unchanged, else a Pack of rank-0 INT64 tensors."""
    if all(isinstance(number, int) for number in numbers):
        return [int(number) for number in numbers]
    return ge.Pack([cast(number, INT64) for number in numbers], axis=0, N=len(numbers))


def like(value: Any, x: Tensor) -> Tensor:
    """A constant of `x`'s data type."""
    return cast(value, x.dtype)


def is_number(operand: Any) -> bool:
    """Return whether the operand is a Python number, or a symbol, which ATen treats as one."""
    if isinstance(operand, Tensor):
        return isinstance(operand.meta, Host) and is_symbol(operand.meta.value)
    return isinstance(operand, int | float | complex)


def working_dtype(to: torch.dtype, *operands: Any) -> torch.dtype:
    """Return the dtype to compute a result of `to` in, if ATen uses numbers without rounding them to
    16 bits.
    """
    if to not in (torch.float16, torch.bfloat16):
        return to
    return to if all(_is_exact(operand, to) for operand in operands) else torch.float32


def _is_exact(operand: Any, dtype: torch.dtype) -> bool:
    if isinstance(operand, Tensor) or not is_number(operand):
        return not is_number(operand)
    rounded = torch.tensor(operand, dtype=dtype).item()
    return rounded == operand or operand != operand


def in_form(result: Any, meta: Any) -> Any:
    """Return the results in FX's structure: a list of one, or a single value."""

    def rebuilt(like: Any) -> Any:
        return tuple(map(rebuilt, like)) if isinstance(like, list | tuple) else next(values)

    is_alike = isinstance(result, list | tuple) == isinstance(meta, list | tuple)
    if is_alike and (not isinstance(meta, list | tuple) or len(meta) == len(result)):
        return result
    values = flat(result)
    return rebuilt(meta)
