"""What each GE op means, by family."""
