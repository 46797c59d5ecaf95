"""The classes and functions that converters are written with, under their known import path."""

from torchair.ge import Cast, Clone, Const, DataType, Format, Tensor, TensorSpec, attr

__all__ = ["Cast", "Clone", "Const", "DataType", "Format", "Tensor", "TensorSpec", "attr"]
