"""Programs, guarded programs and code-generation options."""
