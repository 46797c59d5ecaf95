"""Compile requests in worker processes, and cache the results on disk."""
