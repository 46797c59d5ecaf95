"""The embedded engine: the meaning of each GE op (`kernels/`), and three ways to use that meaning."""
