"""Provide collectives, and the traced replacements of torch.distributed calls."""
