"""Import paths that converter authors know; each module re-exports what the project keeps elsewhere."""
