"""Create tensors from sizes and numbers."""

from __future__ import annotations

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Ints
from torchair.engine.registry import Value, kernel, without_kernel
from torchair.ge.host import Host


@kernel("Fill")
def fill(dims: Ints, value: Value, *, device):
    """Return a tensor of `dims` filled with one value."""
    if isinstance(value, Host):
        return torch.full(dims, value.items[0], dtype=value.dtype, device=device)
    return value.reshape(()).expand(dims).clone()


@kernel("ZerosLike")
def zeros_like(x):
    """Return zeros of the shape and dtype of x."""
    return torch.zeros_like(x)


@kernel("OnesLike")
def ones_like(x):
    """Return ones of the shape and dtype of x."""
    return torch.ones_like(x)


@kernel("Fills")
def fills(x, *, value):
    """Return a tensor like x, filled with one number."""
    return torch.full_like(x, value)


@kernel("Empty")
def empty(shape: Ints, *, dtype, init, device):
    """Return uninitialized memory, or zeros with `init`."""
    make = torch.zeros if init else torch.empty
    return make(shape, dtype=dtypes.to_torch(dtype), device=device)


@kernel("Range")
def range_(start: Host, limit: Host, delta: Host, *, device):
    """Count from `start` in steps of `delta`, without `limit`."""
    return torch.arange(start.items[0], limit.items[0], delta.items[0], dtype=start.dtype, device=device)


@kernel("LinSpace")
def lin_space(start: Host, stop: Host, num: Host, *, device):
    """Return `num` points from start to stop, both included."""
    return torch.linspace(start.items[0], stop.items[0], num.items[0], dtype=start.dtype, device=device)


@kernel("Eye")
def eye(*, num_rows, num_columns, batch_shape, dtype, device):
    """Return ones on the diagonal, for every element of the batch."""
    one = torch.eye(num_rows, num_columns or num_rows, dtype=dtypes.to_torch(dtype), device=device)
    return one.expand(*batch_shape, *one.shape) if batch_shape else one


without_kernel({
    "ConstPlaceHolder": (
        "it refers to a frozen parameter by an address in the process that created the graph",
        "export the graph again with its weights, as constants or as files",
    ),
})  # fmt: skip
