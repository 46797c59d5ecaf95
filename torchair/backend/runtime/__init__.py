"""Compiled graphs at run time: wrappers, input checks and serialized artifacts."""
