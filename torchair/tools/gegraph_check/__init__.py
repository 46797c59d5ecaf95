"""Process task traces of graphs: filter tasks, check for deadlocks, align times."""
