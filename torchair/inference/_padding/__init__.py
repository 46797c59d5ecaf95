"""Decide whether padding a dimension can change a result."""
