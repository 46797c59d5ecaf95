"""Our torch.library ops, each with its fake (shape) function."""
