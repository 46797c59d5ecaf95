"""Collectives, and the calls of torch.distributed that they replace."""
