"""Converters of the `npu` library. Importing this package fills the table of `convert.registry`."""

from torchair.convert.npu import parts, rows

__all__ = ["parts", "rows"]
