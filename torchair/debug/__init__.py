"""Inspect graphs: the results of passes, the values of nodes, the contents of recordings."""
