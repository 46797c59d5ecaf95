"""Write tensors, graphs, generated code and statistics to files."""
