"""The bottom layer: errors, logging, the table of data types, and all access to private modules of torch."""
