"""Options as users write them: rows in `groups/`, frozen to plain values by `resolve.py`."""
