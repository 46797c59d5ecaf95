"""What each GE op means, by family. Importing this package fills the tables of `engine.registry`."""

from torchair.engine.kernels import matmul, pointwise, shape, symbolic

__all__ = ["matmul", "pointwise", "shape", "symbolic"]
