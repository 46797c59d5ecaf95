"""Hold the directory with which child processes of `python -m torchair sim` find `torch_npu`."""
