"""Padding. GE lists begin and end for each dim from the first on (or all begins, then all ends)."""

from __future__ import annotations

import torch

from torchair.core.kernel_params import Ints, Number
from torchair.engine.registry import kernel

aten = torch.ops.aten

_FORWARD = {
    "reflect": (aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d),
    "edge": (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d),
}
_BACKWARD = {
    "reflect": (
        aten.reflection_pad1d_backward,
        aten.reflection_pad2d_backward,
        aten.reflection_pad3d_backward,
    ),
    "edge": (
        aten.replication_pad1d_backward,
        aten.replication_pad2d_backward,
        aten.replication_pad3d_backward,
    ),
}


@kernel("PadV3")
def pad(x, paddings: Ints, constant_values: Number, *, mode, paddings_contiguous):
    """Pad with a number, by mirroring without the border, or by repeating the border."""
    pairs = _pairs(paddings, paddings_contiguous)
    if mode == "constant":
        return torch.constant_pad_nd(
            x, _torch_order(pairs), 0 if constant_values is None else constant_values
        )
    listed = _padded_dims(pairs)
    return _FORWARD[mode][len(listed) - 1](x, _torch_order(listed))


@kernel("PadV3Grad")
def pad_grad(x, paddings: Ints, *, mode, paddings_contiguous):
    """Return the gradient of PadV3: the gradient of padding is added to the elements it was copied from."""
    pairs = _pairs(paddings, paddings_contiguous)
    shape = [size - begin - end for size, (begin, end) in zip(x.shape, pairs, strict=True)]
    listed = _padded_dims(pairs)
    return _BACKWARD[mode][len(listed) - 1](x, x.new_empty(shape), _torch_order(listed))


@kernel("MirrorPad")
def mirror_pad(x, paddings: Ints, *, mode):
    """Pad by mirroring, without the border (REFLECT) or with it (SYMMETRIC), in any dims."""
    for dim, (begin, end) in enumerate(_pairs(paddings, True)):
        if (begin, end) != (0, 0):
            x = _mirrored(x, dim, begin, end, mode)
    return x


def _mirrored(x, dim, begin, end, mode):
    size, border = x.shape[dim], {"REFLECT": 1, "SYMMETRIC": 0}[mode]
    before, after = x.narrow(dim, border, begin), x.narrow(dim, size - border - end, end)
    return torch.cat([before.flip(dim), x, after.flip(dim)], dim)


@kernel("Pad")
def pad_with_zeros(x, paddings: Ints):
    """Pad as PadV3, with zeros."""
    return pad(x, paddings, None, mode="constant", paddings_contiguous=True)


@kernel("PadV2")
def pad_with_number(x, paddings: Ints, constant_values: Number):
    """Pad as PadV3, with a number."""
    return pad(x, paddings, constant_values, mode="constant", paddings_contiguous=True)


def _pairs(paddings, contiguous):
    """Return (begin, end) for each dim."""
    half = len(paddings) // 2
    if contiguous:
        return [(paddings[2 * dim], paddings[2 * dim + 1]) for dim in range(half)]
    return list(zip(paddings[:half], paddings[half:], strict=True))


def _padded_dims(pairs):
    """Return the trailing dims that torch's mirroring ops pad: all but the batch and channel dims."""
    first = next((dim for dim, pair in enumerate(pairs) if pair != (0, 0)), len(pairs) - 1)
    return pairs[max(1, min(first, 2)) :] if len(pairs) > 1 else pairs


def _torch_order(pairs):
    """List pads from the last dim outwards."""
    return [side for pair in reversed(pairs) for side in pair]
