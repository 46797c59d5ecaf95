"""Observe a compilation and write the debug directory."""
