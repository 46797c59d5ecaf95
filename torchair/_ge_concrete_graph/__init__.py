"""Keep import paths that converters use; each module re-exports names of other modules."""
