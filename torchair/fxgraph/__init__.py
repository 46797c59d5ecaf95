"""Facts about an FX graph, each once: layouts of what leaves it, marks, what is the same, symbols."""
