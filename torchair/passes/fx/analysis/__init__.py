"""Facts about FX graphs that passes use: aliases, stream order, sizes and mutation."""
