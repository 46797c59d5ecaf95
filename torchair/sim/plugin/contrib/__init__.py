"""Provide `torch_npu.contrib`: layers and functions in forms that the hardware prefers. Importing
`transfer_to_npu` makes scripts for CUDA use the device.
"""

from torchair.sim.plugin.contrib import function, module
from torchair.sim.plugin.contrib.function import (
    dropout_with_byte_mask,
    fuse_add_softmax_dropout,
    matmul_transpose,
    npu_fast_condition_index_put,
    roll,
)
from torchair.sim.plugin.contrib.module import (
    ChannelShuffle,
    DropoutWithByteMask,
    LabelSmoothingCrossEntropy,
    LinearA8W8Quant,
    LinearWeightQuant,
    Mish,
    Prefetcher,
    SiLU,
    Swish,
)

__all__ = [
    "ChannelShuffle",
    "DropoutWithByteMask",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearWeightQuant",
    "Mish",
    "Prefetcher",
    "SiLU",
    "Swish",
    "dropout_with_byte_mask",
    "function",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "module",
    "npu_fast_condition_index_put",
    "roll",
]
