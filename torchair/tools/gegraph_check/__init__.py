"""Task traces of graphs: filtered, checked for deadlocks, aligned in time."""
