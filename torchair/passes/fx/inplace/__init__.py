"""Passes that make operations write in place."""
