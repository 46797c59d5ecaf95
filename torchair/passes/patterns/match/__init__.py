"""Match one rule against a graph."""
