"""Converters of prims ops."""
