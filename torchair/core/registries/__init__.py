"""Lazy registries, user registrations, and detection of the vendor plug-in."""
