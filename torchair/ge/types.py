"""`DataType`, `Format` and `TensorSpec`: the public descriptions of what an IR tensor is."""

from __future__ import annotations

import enum
from typing import Any

import torch

from torchair.core import dtypes
from torchair.core.errors import BadConverter
from torchair.ge.host import host_dtype, is_symbol


class DataType:
    """GE data types as plain ints (the runtime numbering, as in attributes)."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_STRING = 13
    DT_DUAL_SUB_INT8 = 14
    DT_DUAL_SUB_UINT8 = 15
    DT_COMPLEX64 = 16
    DT_COMPLEX128 = 17
    DT_QINT8 = 18
    DT_QINT16 = 19
    DT_QINT32 = 20
    DT_QUINT8 = 21
    DT_QUINT16 = 22
    DT_RESOURCE = 23
    DT_STRING_REF = 24
    DT_DUAL = 25
    DT_VARIANT = 26
    DT_BF16 = 27
    DT_UNDEFINED = 28
    DT_INT4 = 29
    DT_UINT1 = 30
    DT_INT2 = 31
    DT_UINT2 = 32
    DT_COMPLEX32 = 33
    DT_HIFLOAT8 = 34
    DT_FLOAT8_E5M2 = 35
    DT_FLOAT8_E4M3FN = 36
    DT_FLOAT8_E8M0 = 37
    DT_FLOAT6_E3M2 = 38
    DT_FLOAT6_E2M3 = 39
    DT_FLOAT4_E2M1 = 40
    DT_FLOAT4_E1M2 = 41
    DT_MAX = 42


class Format(enum.Enum):
    """Memory layouts that a tensor can be marked with."""

    FORMAT_UNDEFINED = -1
    FORMAT_NCHW = 0
    FORMAT_NHWC = 1
    FORMAT_ND = 2
    FORMAT_NC1HWC0 = 3
    FORMAT_FRACTAL_Z = 4
    FORMAT_NC1HWC0_C04 = 12
    FORMAT_HWCN = 16
    FORMAT_NDHWC = 27
    FORMAT_FRACTAL_NZ = 29
    FORMAT_NCDHW = 30
    FORMAT_NDC1HWC0 = 32
    FORMAT_FRACTAL_Z_3D = 33
    FORMAT_NC = 35
    FORMAT_NCL = 47
    FORMAT_FRACTAL_NZ_C0_16 = 50
    FORMAT_FRACTAL_NZ_C0_2 = 52
    FORMAT_FRACTAL_NZ_C0_4 = 53
    FORMAT_FRACTAL_NZ_C0_8 = 54


class TensorSpec:
    """Describe the expected result of an FX node.

    For a result that is neither a tensor nor a symbol, all fields are None.
    """

    def __init__(self, meta: Any) -> None:
        self._meta = meta
        self.torch_dtype: torch.dtype | None = None
        if isinstance(meta, torch.Tensor):
            self.torch_dtype = meta.dtype
        elif is_symbol(meta):
            self.torch_dtype = host_dtype(meta)

    @property
    def dtype(self) -> int | None:
        """GE data type."""
        return None if self.torch_dtype is None else dtypes.to_ge(self.torch_dtype)

    @property
    def rank(self) -> int | None:
        """Number of dimensions."""
        return None if self.torch_dtype is None else len(self.symsize)

    @property
    def symsize(self) -> tuple[Any, ...]:
        """Sizes that may contain symbols."""
        return tuple(self._meta.shape) if isinstance(self._meta, torch.Tensor) else ()

    @property
    def size(self) -> list[int] | None:
        """Return the sizes as plain ints; raise AssertionError if one is symbolic."""
        if self.torch_dtype is None:
            return None
        if any(is_symbol(size) for size in self.symsize):
            raise BadConverter(
                "the size is not constant",
                got=str(list(self.symsize)),
                next="use symsize, or sizes computed in the graph",
            )
        return [int(size) for size in self.symsize]

    @property
    def device(self) -> torch.device | None:
        """Device of the result."""
        return self._meta.device if isinstance(self._meta, torch.Tensor) else None

    def __repr__(self) -> str:
        return f"TensorSpec(dtype={self.dtype}, size={list(self.symsize)})"


def spec_of(meta: Any) -> Any:
    """Return TensorSpecs for a (nested) FX result."""
    if isinstance(meta, list | tuple):
        return [spec_of(item) for item in meta]
    return TensorSpec(meta)
