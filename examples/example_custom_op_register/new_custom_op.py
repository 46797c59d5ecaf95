"""A new op, to be imported before a model that calls it is compiled: `torch.ops.npu_define.custom_op`.

What it takes: its schema; what it computes, per device; what it returns (Meta); how graph mode writes it.
"""

import torch
from torch.library import Library, impl

import torchair
from torchair import ge

library = Library("npu_define", "DEF")
library.define("custom_op(Tensor input1, Tensor input2) -> Tensor")


@impl(library, "custom_op", "PrivateUse1")  # the device npu
@impl(library, "custom_op", "CUDA")
@impl(library, "custom_op", "CPU")
def custom_op(input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
    """The op itself, outside of graphs."""
    return torch.add(input1, input2)


@impl(library, "custom_op", "Meta")
def custom_op_meta(input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
    """Shape and type of its result."""
    return torch.empty_like(input1)


@torchair.register_fx_node_ge_converter(torch.ops.npu_define.custom_op.default)
def convert_custom_op(input1: ge.Tensor, input2: ge.Tensor, meta_outputs: ge.TensorSpec = None) -> ge.Tensor:
    """The op of the IR that it becomes in graph mode."""
    return ge.custom_op("Add", inputs={"x1": input1, "x2": input2}, outputs=["y"])
