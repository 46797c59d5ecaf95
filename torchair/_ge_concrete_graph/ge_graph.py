"""Re-export the classes and functions for writing converters under their documented import path."""

from torchair.ge import Cast, Clone, Const, DataType, Format, Tensor, TensorSpec, attr

__all__ = ["Cast", "Clone", "Const", "DataType", "Format", "Tensor", "TensorSpec", "attr"]
