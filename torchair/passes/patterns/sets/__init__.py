"""The registry of rules, and the built-in rules."""
