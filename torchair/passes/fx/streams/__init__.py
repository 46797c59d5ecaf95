"""Passes for streams, events and scopes."""
