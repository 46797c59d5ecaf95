"""A new op, to be imported before a model that calls it is compiled: `torch.ops.npu_define.custom_op`.

What it takes: its schema; what it computes, per device; what it returns (Meta); its prototype as an op of the
IR, in codegen/custom_op/custom_reg_op.h; how graph mode writes it.
"""

import sys
from pathlib import Path

import torch
from torch.library import Library, impl

import torchair
from torchair.ge import Tensor, TensorSpec

# Written by `make generate_ge_raw_custom_ops`, from the REG_OP prototypes in custom_reg_op.h beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "codegen" / "custom_op"))
import auto_generated_ge_raw_custom_ops as custom_ops

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
def convert_custom_op(input1: Tensor, input2: Tensor, meta_outputs: TensorSpec = None) -> Tensor:
    """The op of the IR that it becomes in graph mode: the one that the header declares.

    Exported graphs have it under its own name; where nothing else knows it, it is run by the op above.
    """
    return custom_ops.CustomOp(input1, input2)
