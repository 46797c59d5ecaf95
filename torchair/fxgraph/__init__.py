"""Facts about FX graphs: output layouts, conj/neg bits, equality of values, symbols."""
