"""Generate code with Inductor, and prepare graphs for it."""
