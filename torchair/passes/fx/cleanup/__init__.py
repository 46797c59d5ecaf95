"""Passes that simplify graphs."""
