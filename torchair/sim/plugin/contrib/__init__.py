"""`torch_npu.contrib`: importing `transfer_to_npu` turns scripts for CUDA into scripts for the device."""
