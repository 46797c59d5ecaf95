"""Converters of ATen ops by family. Importing this package fills the table of `convert.registry`."""

from torchair.convert.aten import matmul, pointwise, shape

__all__ = ["matmul", "pointwise", "shape"]
