"""Read, write, verify and compare graph files."""
