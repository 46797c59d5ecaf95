"""Generate native libraries with AOTInductor."""
