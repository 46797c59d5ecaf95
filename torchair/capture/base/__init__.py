"""Describe graphs that may be recorded: inputs, keys, policies, output buffers and statistics."""
