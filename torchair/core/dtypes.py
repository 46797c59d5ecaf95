"""The table of data types: torch dtype, GE name, runtime number (attributes) and wire number
(descriptors).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torchair.core.errors import NotPossible


class DType(NamedTuple):
    """A row of the table: GE name without `DT_`, runtime number, wire number, torch dtype (None if torch has
    none).
    """

    name: str
    runtime: int
    wire: int
    torch: torch.dtype | None


_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)

ROWS = (
    DType("FLOAT", 0, 1, torch.float32),
    DType("FLOAT16", 1, 2, torch.float16),
    DType("INT8", 2, 3, torch.int8),
    DType("INT32", 3, 7, torch.int32),
    DType("UINT8", 4, 4, torch.uint8),
    DType("INT16", 6, 5, torch.int16),
    DType("UINT16", 7, 6, torch.uint16),
    DType("UINT32", 8, 9, torch.uint32),
    DType("INT64", 9, 8, torch.int64),
    DType("UINT64", 10, 10, torch.uint64),
    DType("DOUBLE", 11, 12, torch.float64),
    DType("BOOL", 12, 11, torch.bool),
    DType("STRING", 13, 13, None),
    DType("DUAL_SUB_INT8", 14, 14, None),
    DType("DUAL_SUB_UINT8", 15, 15, None),
    DType("COMPLEX64", 16, 16, torch.complex64),
    DType("COMPLEX128", 17, 17, torch.complex128),
    DType("QINT8", 18, 18, torch.qint8),
    DType("QINT16", 19, 19, None),
    DType("QINT32", 20, 20, torch.qint32),
    DType("QUINT8", 21, 21, torch.quint8),
    DType("QUINT16", 22, 22, None),
    DType("RESOURCE", 23, 23, None),
    DType("STRING_REF", 24, 24, None),
    DType("DUAL", 25, 25, None),
    DType("VARIANT", 26, 26, None),
    DType("BF16", 27, 27, torch.bfloat16),
    DType("UNDEFINED", 28, 0, None),
    DType("INT4", 29, 28, torch.quint4x2),
    DType("UINT1", 30, 29, None),
    DType("INT2", 31, 30, None),
    DType("UINT2", 32, 31, None),
    DType("COMPLEX32", 33, 32, torch.complex32),
    DType("HIFLOAT8", 34, 33, None),
    DType("FLOAT8_E5M2", 35, 34, torch.float8_e5m2),
    DType("FLOAT8_E4M3FN", 36, 35, torch.float8_e4m3fn),
    DType("FLOAT8_E8M0", 37, 36, _E8M0),
    DType("FLOAT6_E3M2", 38, 37, None),
    DType("FLOAT6_E2M3", 39, 38, None),
    DType("FLOAT4_E2M1", 40, 39, None),
    DType("FLOAT4_E1M2", 41, 40, None),
)

BY_NAME = {row.name: row for row in ROWS}
BY_RUNTIME = {row.runtime: row for row in ROWS}
BY_WIRE = {row.wire: row for row in ROWS}
UNDEFINED = BY_NAME["UNDEFINED"].runtime

_FROM_TORCH = {
    row.torch: row.runtime for row in reversed(ROWS) if row.torch is not None and row.torch != torch.uint8
}
_FROM_TORCH[torch.uint8] = BY_NAME["UINT8"].runtime
# Values of types that torch does not have are stored as bytes.
_AS_BYTES = {BY_NAME[name].runtime: torch.uint8 for name in ("HIFLOAT8", "FLOAT4_E2M1", "FLOAT4_E1M2")}
_TO_TORCH = _AS_BYTES | {row.runtime: row.torch for row in ROWS if row.torch is not None}


SMALL = {
    BY_NAME["INT4"].runtime: torch.int8,
    BY_NAME["FLOAT4_E2M1"].runtime: torch.bfloat16,
    BY_NAME["FLOAT4_E1M2"].runtime: torch.bfloat16,
}
"""Maps the types of four bits to the torch dtype in which the engine stores them: one element per value,
which that dtype represents exactly. torch packs two of them in a byte or eight in an int32; `Bitcast`
converts.
"""
LACKING = frozenset({*SMALL, BY_NAME["HIFLOAT8"].runtime})
"""Types without a torch dtype. The dtype they are stored in does not identify them; the descriptor does."""


def carrier(runtime: int) -> torch.dtype:
    """Return the torch dtype in which the engine stores a GE data type."""
    return SMALL.get(runtime) or BY_RUNTIME[runtime].torch or torch.uint8


def bits(runtime: int) -> int:
    """Return the number of bits of a value."""
    return 4 if runtime in SMALL else 8 * carrier(runtime).itemsize


def to_ge(dtype: torch.dtype) -> int:
    """Return the runtime number of the GE data type for a torch dtype."""
    if dtype not in _FROM_TORCH:
        raise NotPossible(
            f"{dtype} has no GE data type",
            next="convert the tensor to a supported type first, for example float32",
        )
    return _FROM_TORCH[dtype]


def to_torch(runtime: int) -> torch.dtype:
    """Return the torch dtype for the runtime number of a GE data type. Types that torch does not have are
    bytes.
    """
    if runtime not in _TO_TORCH:
        name = BY_RUNTIME[runtime].name if runtime in BY_RUNTIME else str(runtime)
        raise NotPossible(f"the GE data type DT_{name} has no torch dtype")
    return _TO_TORCH[runtime]


def ge_name(runtime: int) -> str:
    """Return the GE name: `DT_FLOAT` for 0."""
    return "DT_" + BY_RUNTIME[runtime].name
