"""Locate the converter, kernel, lowering or generated code that computes wrong values."""
