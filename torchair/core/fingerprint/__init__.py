"""Identify code, objects, files and the machine."""
