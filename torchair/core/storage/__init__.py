"""Serialize objects, and store artifacts on disk."""
