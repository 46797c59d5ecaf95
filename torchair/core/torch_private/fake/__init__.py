"""Fake tensors, symbols, tracing and pytrees."""
