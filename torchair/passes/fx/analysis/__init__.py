"""Compute facts about FX graphs for passes: aliases, stream order, sizes and mutation."""
