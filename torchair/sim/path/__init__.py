"""Hold the directory that `python -m torchair sim` adds to the path of child processes, so that
`import torch_npu` works in them.
"""
