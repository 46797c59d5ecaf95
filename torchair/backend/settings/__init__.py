"""Resolve the option tree into plain, typed, immutable values."""
