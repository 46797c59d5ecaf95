"""Convert higher-order ops, collectives, printing and other special cases."""
