"""The embedded engine: what each GE op means (`kernels/`), and three ways to use that meaning."""
