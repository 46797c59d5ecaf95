"""Serve calls: run directly, replay recordings, or run partitions."""
