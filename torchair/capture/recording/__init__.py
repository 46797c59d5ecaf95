"""Record one device graph: its static inputs, outputs and memory."""
