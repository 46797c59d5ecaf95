"""Replay calls, measure differences, and describe mismatches."""
