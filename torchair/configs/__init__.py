"""Define the options: one row each in `groups/`, frozen to plain values by `resolve.py`."""
