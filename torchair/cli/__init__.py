"""Implement the commands of `python -m torchair`, one file each."""
