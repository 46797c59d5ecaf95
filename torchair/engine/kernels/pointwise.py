"""Elementwise ops: one result element from the elements at the same place."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.engine.registry import kernel, torch_kernels

torch_kernels({
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Neg": torch.neg,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
})


@kernel("Cast")
def cast(x, *, dst_type):
    """torch's `.to`: float to int truncates, anything to bool is x != 0."""
    return x.to(dtypes.to_torch(dst_type))


@kernel("Muls")
def muls(x, *, value):
    """The product with the unrounded number."""
    return x * value


@kernel("Identity", "TensorMove")
def identity(x):
    """The same value; nothing in the IR can write into it."""
    return x


@kernel("Assign")
def assign(ref, value):
    """Writes `value` into `ref`; the result is `ref`."""
    return ref.copy_(value)
