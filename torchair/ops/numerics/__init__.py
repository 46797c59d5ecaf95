"""Number formats, private layouts and numeric building blocks."""
