"""Device memory, PrivateUse1 backends and process groups."""
