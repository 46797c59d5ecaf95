"""Measurements against eager PyTorch and stock `torch.compile`, side by side in one process."""
