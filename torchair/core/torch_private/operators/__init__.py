"""Schemas of operators, and operator namespaces that load on first use."""
