"""The converter registry, the conversion state and reports."""
