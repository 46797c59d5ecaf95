"""Looking into graphs: what passes made of them, what nodes computed, what recordings hold."""
