"""Define the meaning of each GE op, by family."""
