"""Provide number formats, private layouts and numeric building blocks."""
