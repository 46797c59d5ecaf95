"""Describe patterns: user functions, explicit patterns and their identity."""
