"""Converters of ATen ops by family."""
