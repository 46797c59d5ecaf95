"""Passes over FX graphs, one per file."""
