"""Ops of streams, events and core limits."""
