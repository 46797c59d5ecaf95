"""Activations, matrix products, norms, quantization and sampling."""
