"""Convert torch's packed tensors to tensors of the IR, which have one element per value, and back.

Rows define the meaning of the storage of arguments with `operand`, `weight` and `scale_of`. Eager ops unpack
and pack tensors with `read` and `packed`; graphs use a `Bitcast` instead.
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.core import dtypes
from torchair.ops.npu.common.op_spec import Computed, Held, dtype_of, made, shape_of
from torchair.ops.numerics.formats import E8M0, HIF8, INT4, ir_type, pack, unpack

_CODED = (*dtypes.SMALL, HIF8, E8M0)


def kind_of(x: Any, code: Any = None, of_bytes: int | None = None) -> int | None:
    """Return the type of packed data (int4 in int32, bytes by code or `of_bytes`), or None."""
    if x is None or dtype_of(x) not in (torch.int32, torch.uint8):
        return None
    if dtype_of(x) == torch.int32:
        return INT4
    return kind if (kind := ir_type(code)) in _CODED else of_bytes


def operand(x: str, code: str | None = None, of_bytes: int | None = None) -> Computed:
    """Define an argument that may be packed along its last dim."""

    def held(x: Any, code: Any = None) -> Held | None:
        kind = kind_of(_first(x), code, of_bytes)
        return None if kind is None else Held(kind)

    return made(held, x, *([code] if code else []))


def scale_of(x: str) -> Computed:
    """Define a scale argument: bytes are powers of two."""
    return operand(x, of_bytes=E8M0)


def weight(
    name: str, other: str, codes: tuple[str, ...] = (), *, of_bytes: int | None = None, flag: str = ""
) -> Computed:
    """Define the right operand [.., K, N] of a product. A transposed view is packed along K; `flag` is the
    attribute with which the IR op reads it transposed.
    """

    def held(weight: Any, x: Any, code: Any = None, x_code: Any = None) -> Held | None:
        weight, x = _first(weight), _first(x)
        kind = kind_of(weight, code, of_bytes)
        if kind not in dtypes.SMALL:
            return None if kind is None else Held(kind)
        inner = shape_of(x)[-1] * per_word(x, kind_of(x, x_code, of_bytes))
        return Held(kind, shape_of(weight)[-2] != inner, flag)

    return made(held, name, other, *codes)


def per_word(x: Any, kind: int | None) -> int:
    """Return the number of values in one element of torch's tensor."""
    return 2 * dtype_of(x).itemsize if kind in dtypes.SMALL else 1


def read(x: torch.Tensor, held: Held) -> torch.Tensor:
    """Unpack a tensor to one element per value."""
    if held.kind not in dtypes.SMALL:
        return x
    return unpack(x.mT, held.kind).mT if held.turned else unpack(x, held.kind)


def packed(x: torch.Tensor, kind: int | None, word: torch.dtype) -> torch.Tensor:
    """Pack values as in torch: fp4 in bytes, int4 in elements of dtype `word`."""
    return x if kind not in dtypes.SMALL else pack(x, kind, word if kind == INT4 else torch.uint8)


def _first(x: Any) -> Any:
    """Return the first tensor of a list; all of them are packed in the same way."""
    return (x[0] if x else None) if isinstance(x, list | tuple) else x
