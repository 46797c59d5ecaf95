"""Provide the converter registry, the conversion state and reports."""
