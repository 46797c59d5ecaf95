"""Analyze traces of streams: alignment, deadlocks and device graphs."""
