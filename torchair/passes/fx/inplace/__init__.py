"""Passes that make ops write in place."""
