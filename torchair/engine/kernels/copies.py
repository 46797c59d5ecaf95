"""Casts, copies and writes."""

from __future__ import annotations

from torchair.core import dtypes
from torchair.engine.registry import kernel


@kernel("Cast")
def cast(x, *, dst_type):
    """torch's `.to`: float to int truncates, anything to bool is x != 0."""
    return x.to(dtypes.to_torch(dst_type))


@kernel("Bitcast")
def bitcast(x, *, type, keep_dim):
    """The same bytes read as another type; a change of width scales the last dim."""
    assert not keep_dim, "only torch's form of Bitcast is emitted"
    return x.view(dtypes.to_torch(type))


@kernel("CastLike")
def cast_like(x, target):
    """In the dtype of another tensor."""
    return x.to(target.dtype)


@kernel("Identity", "IdentityN", "StopGradient", "GuaranteeConst", "Snapshot")
def identity(x):
    """The same value, or values."""
    return x


@kernel("PreventGradient")
def prevent_gradient(x, *, message):
    """The same value; `message` is for who would differentiate it."""
    return x


@kernel("TensorMove")
def tensor_move(x):
    """A copy of its own, which no write into x reaches."""
    return x.clone()


@kernel("Assign")
def assign(ref, value):
    """Writes `value` into `ref`; the result is `ref`."""
    return ref.copy_(value)
