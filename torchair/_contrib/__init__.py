"""Keep an import path that existing scripts use."""
