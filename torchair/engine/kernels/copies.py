"""Casts, copies and writes."""

from __future__ import annotations

from torchair.core import dtypes
from torchair.engine.registry import kernel
from torchair.ops.numerics.formats import HIF8, load, pack, store, unpack, wide


@kernel("Cast", makes={0: "dst_type"})
def cast(x, *, dst_type, types):
    """Cast as torch's `.to`: float to int truncates, anything to bool is x != 0.

    Types that torch lacks round to the nearest value.
    """
    x = load(x) if types["x"] == HIF8 else x
    if dst_type == HIF8 or dst_type in dtypes.SMALL:
        return store(wide(x), dst_type)
    return x.to(dtypes.to_torch(dst_type))


@kernel("Bitcast", makes={0: "type"})
def bitcast(x, *, type, keep_dim, types):
    """Read the same bits as another type.

    A narrower type adds a last dim with the parts of one value, a wider one removes that dim. With `keep_dim`
    the last dim is that many times longer or shorter.
    """
    source, have, want = types["x"], dtypes.bits(types["x"]), dtypes.bits(type)
    x = x.unsqueeze(-1) if have > want and not keep_dim else x
    if type in dtypes.SMALL:
        result = x if source in dtypes.SMALL and source == type else unpack(x, type)
    elif source in dtypes.SMALL:
        result = pack(x, source, dtypes.to_torch(type))
    else:
        # torch splits and joins only adjacent bytes; the layout of an IR tensor is not known.
        result = (x if have == want else x.contiguous()).view(dtypes.to_torch(type))
    return result.squeeze(-1) if have < want and not keep_dim else result


@kernel("CastLike")
def cast_like(x, target):
    """Cast to the dtype of another tensor."""
    return x.to(target.dtype)


@kernel("Identity", "IdentityN", "StopGradient", "GuaranteeConst", "Snapshot")
def identity(x):
    """Return the value, or values, unchanged."""
    return x


@kernel("PreventGradient")
def prevent_gradient(x, *, message):
    """Return the value unchanged; `message` is for code that would differentiate it."""
    return x


@kernel("TensorMove")
def tensor_move(x):
    """Return a separate copy, which no write into x reaches."""
    return x.clone()


@kernel("Assign")
def assign(ref, value):
    """Write `value` into `ref`; the result is `ref`."""
    return ref.copy_(value)
