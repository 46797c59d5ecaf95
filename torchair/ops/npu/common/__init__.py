"""Share op specifications, packing and ranks between the families of the `npu` library."""
