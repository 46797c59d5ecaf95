"""Ops that print and save tensors."""
