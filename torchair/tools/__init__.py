"""Provide command line tools for users who extend torchair."""
