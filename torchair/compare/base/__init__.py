"""Replay calls, measure differences, and describe what differs."""
