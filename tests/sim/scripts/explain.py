"""`torchair.explain` on the device: nothing falls back."""

import torch
import torch_npu

import torchair

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).npu()
found = torchair.explain(model, torch.randn(2, 4, device="npu"))
assert len(found.graphs) == 1
assert found.graphs[0].ge_ops > 0
assert not found.fallbacks
assert not found.graph_breaks
