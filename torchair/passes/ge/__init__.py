"""Passes over GE graphs, one per file."""
