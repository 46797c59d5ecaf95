"""What `python -m torchair sim` adds to the path of processes that a script starts: `import torch_npu` works
there, too.
"""
