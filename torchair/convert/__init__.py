"""FX -> GE: registry, rows by family, the walk over the graph."""
