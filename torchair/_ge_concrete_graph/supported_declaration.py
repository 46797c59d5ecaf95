"""Re-export `Support` and the typed tensors of declared cases under their documented import path."""

from torchair.convert.base.case_spec import BF16, BOOL, C64, F16, F32, F64, I8, I16, I32, I64, U8, Support, T

__all__ = ["BF16", "BOOL", "C64", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "Support", "T"]
