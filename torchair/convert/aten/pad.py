"""ATen padding. ATen lists begin and end from the last dim outwards, GE from the first dim inwards."""

from __future__ import annotations

import math

import torch

from torchair import ge
from torchair.convert.base.operands import like, sizes, static_sizes
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.constant_pad_nd.default)
def constant_pad_nd(self, pad, value=0):
    """Pad with a number; negative padding removes elements."""
    if not self.rank:
        return ge.Identity(self)
    return ge.PadV3(self, _paddings(pad, self.rank), like(value, self), mode="constant")


def _mirrored(mode):
    def run(self, padding):
        return ge.PadV3(self, _paddings(padding, self.rank), mode=mode)

    return run


def _mirrored_backward(mode):
    def run(grad_output, self, padding):
        return ge.PadV3Grad(grad_output, _paddings(padding, self.rank), mode=mode)

    return run


for _name, _mode in {"reflection": "reflect", "replication": "edge"}.items():
    for _dims in (1, 2, 3):
        converter(getattr(aten, f"{_name}_pad{_dims}d").default)(_mirrored(_mode))
        converter(getattr(aten, f"{_name}_pad{_dims}d_backward").default)(_mirrored_backward(_mode))


def _paddings(pad, rank):
    """Return begin and end for each dim from the first on: ints, or an INT64 vector if there is a symbol."""
    count = sizes(pad)[0] if isinstance(pad, ge.Tensor) else len(pad)
    order = [2 * pair + side for pair in reversed(range(count // 2)) for side in (0, 1)]
    untouched = [0] * (2 * rank - count)
    if isinstance(pad, ge.Tensor):
        inner = ge.GatherV2(pad, order, [0])
        return ge.ConcatV2([untouched, inner], 0, N=2) if untouched else inner
    return untouched + [pad[place] for place in order]


@converter(aten.resize.default)
def resize(self, size, *, memory_format=None):
    """Change the shape over the same flat elements; new elements are undefined in ATen and 0 here."""
    have, want = static_sizes(self), size if isinstance(size, list) else None
    if have is None or want is None or memory_format not in (None, torch.contiguous_format):
        raise NotImplementedError("a size is symbolic, or the order of the dims is another one")
    line, count, more = ge.Reshape(self, [-1]), math.prod(want), math.prod(want) - math.prod(have)
    if more > 0:
        line = ge.PadV3(line, [0, more], like(0, self), mode="constant")
    elif more < 0:
        line = ge.StridedSliceV2(line, [0], [count], [0], [1])
    return ge.Reshape(line, want)
