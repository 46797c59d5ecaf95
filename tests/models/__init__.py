"""Whole models: the zoo, equality with eager, and the decode loop."""
