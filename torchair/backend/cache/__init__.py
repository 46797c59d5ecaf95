"""Persist compiled methods across processes (`cache_compile`)."""
