"""Attention, rotary positions and key-value caches."""
