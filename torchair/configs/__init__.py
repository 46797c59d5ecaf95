"""Options as users write them: rows in `compiler_config.py`, frozen to plain values by `freeze.py`."""
