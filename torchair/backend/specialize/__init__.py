"""Compile extra programs for particular sizes."""
