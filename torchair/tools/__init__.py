"""Commands for people who build on torchair."""
