"""What the families of the `npu` library share: op specifications, packing and ranks."""
