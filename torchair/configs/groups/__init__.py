"""Define option `a.b` in `groups/a.py`, one row each. `compiler_config.py` builds the tree."""
