"""Explain what a compile does, and run the declared cases of converters."""
