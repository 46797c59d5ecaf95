"""Start worker processes in scratch directories, and end both together."""
