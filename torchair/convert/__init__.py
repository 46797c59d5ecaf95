"""Convert FX to GE: the registry, converters by family, and the conversion of a graph."""
