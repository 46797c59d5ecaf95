"""Add ops to the graph being built, and bind IR ops to calls of torch."""
