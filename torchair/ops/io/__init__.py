"""Print and save tensors."""
