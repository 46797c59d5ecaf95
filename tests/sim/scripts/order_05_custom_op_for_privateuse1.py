"""A new op with a kernel for the device, eagerly and in a graph."""

import proof
import torch
import torch_npu
from torch.library import Library, impl

import torchair
from torchair import ge

m = Library("npu_define", "DEF")
m.define("custom_op(Tensor input1, Tensor input2) -> Tensor")
ran = []


@impl(m, "custom_op", "PrivateUse1")
def custom_op_npu(input1, input2):
    ran.append(input1.device.type)
    return torch.add(input1, input2)


@impl(m, "custom_op", "Meta")
def custom_op_meta(input1, input2):
    return torch.empty_like(input1)


@torchair.register_fx_node_ge_converter(torch.ops.npu_define.custom_op.default)
def convert_custom_op(input1, input2, meta_outputs=None):
    return ge.Add(input1, input2)


x, y = torch.randn(2, 2), torch.randn(2, 2)
proof.close(torch.ops.npu_define.custom_op(x.npu(), y.npu()), x + y)
assert ran == ["npu"]
opt = torch.compile(torch.ops.npu_define.custom_op, backend=torchair.get_npu_backend(), fullgraph=True)
with proof.compiled(), proof.replayed():
    for _ in range(3):
        proof.close(opt(x.npu(), y.npu()), x + y)
