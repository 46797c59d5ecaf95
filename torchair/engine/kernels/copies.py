"""Casts, copies and writes."""

from __future__ import annotations

from torchair.core import dtypes
from torchair.engine.registry import kernel
from torchair.ops.numerics.formats import HIF8, load, pack, store, unpack, wide


@kernel("Cast", makes={0: "dst_type"})
def cast(x, *, dst_type, types):
    """torch's `.to`: float to int truncates, anything to bool is x != 0. Types that torch lacks round to the
    nearest value.
    """
    x = load(x) if types["x"] == HIF8 else x
    if dst_type == HIF8 or dst_type in dtypes.SMALL:
        return store(wide(x), dst_type)
    return x.to(dtypes.to_torch(dst_type))


@kernel("Bitcast", makes={0: "type"})
def bitcast(x, *, type, keep_dim, types):
    """The same bits read as another type. A narrower one adds a last dim of so many as one value was, a wider
    one takes that dim away; with `keep_dim` the last dim is that many times longer or shorter.
    """
    source, have, want = types["x"], dtypes.bits(types["x"]), dtypes.bits(type)
    x = x.unsqueeze(-1) if have > want and not keep_dim else x
    if type in dtypes.SMALL:
        made = x if source in dtypes.SMALL and source == type else unpack(x, type)
    elif source in dtypes.SMALL:
        made = pack(x, source, dtypes.to_torch(type))
    else:
        # torch splits and joins only what lies side by side; of the IR nobody knows how it lies.
        made = (x if have == want else x.contiguous()).view(dtypes.to_torch(type))
    return made.squeeze(-1) if have < want and not keep_dim else made


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
