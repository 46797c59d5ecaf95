"""An import path that scripts know."""
