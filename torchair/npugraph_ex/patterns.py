"""Replacements of patterns in graphs."""

from torchair.passes.patterns.table import register_replacement

__all__ = ["register_replacement"]
