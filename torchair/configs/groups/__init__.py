"""The options, each one row: `a.b` stands in `groups/a.py`. The tree of them is `compiler_config.py`."""
