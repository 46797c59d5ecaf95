"""Task traces of recorded graphs: filtered, checked for deadlocks, aligned in time."""
