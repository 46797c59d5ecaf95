"""The bottom layer: errors, logging, the dtype table and the one door to private torch."""
