"""Start worker processes in scratch directories, and clean up both together."""
