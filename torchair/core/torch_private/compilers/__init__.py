"""AOTAutograd, Inductor and the pattern matcher."""
