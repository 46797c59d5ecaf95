"""A converter of the user's for aten.add.Tensor, with the inputs it supports."""

import proof
import torch
import torch_npu

import torchair
from torchair import ge
from torchair._ge_concrete_graph.fx2ge_converter import declare_supported
from torchair._ge_concrete_graph.supported_declaration import F32, Support
from torchair._ge_concrete_graph.utils import dtype_promote

calls = []


@declare_supported([Support(F32(2, 2), F32(2, 1)), Support(F32(2, 2), 2), Support(F32(2, 2), 2, alpha=2.0)])
@torchair.register_fx_node_ge_converter(torch.ops.aten.add.Tensor)
def convert_add(self, other, *, alpha=1, meta_outputs=None):
    calls.append(alpha)
    self, other = dtype_promote(self, other, target_dtype=meta_outputs.dtype)
    if alpha == 1:
        return ge.Add(self, other)
    return ge.AxpyV2(self, other, dtype_promote(alpha, target_dtype=meta_outputs.dtype))


opt = torch.compile(
    lambda x, y: torch.add(x, y) + torch.add(x, y, alpha=2), backend=torchair.get_npu_backend()
)
x, y = torch.randn(2, 2), torch.randn(2, 1)
with proof.compiled(), proof.replayed():
    for _ in range(3):
        proof.close(opt(x.npu(), y.npu()), torch.add(x, y) + torch.add(x, y, alpha=2))
assert 2 in calls, calls
assert 1 in calls, calls
