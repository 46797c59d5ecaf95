"""Define ops of streams, events and core limits."""
