"""Commands for traces of recorded graphs."""
