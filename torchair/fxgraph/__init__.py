"""Facts about an FX graph, each once: layouts of what leaves it, what is the same, symbols."""
