"""Define activations, matrix products, norms, quantization and sampling."""
