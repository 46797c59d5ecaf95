"""Converters of the `npu` library."""
