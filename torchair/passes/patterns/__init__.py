"""Replace patterns: built-in rules and the rules of users."""
