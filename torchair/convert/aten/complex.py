"""Special cases of complex numbers: lazy views, copies, polar form.

Converters for parts, products and functions of complex numbers are in `pointwise`.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.pointwise import conj, view_as_complex, view_as_real
from torchair.convert.base.registry import converter, map_one_to_one

aten = torch.ops.aten

# A copy of a view: in the IR every result is a separate value.
converter(aten._conj_copy.default)(conj)
converter(aten.view_as_real_copy.default)(view_as_real)
converter(aten.view_as_complex_copy.default)(view_as_complex)
# The lazily negated imaginary part of a conjugate is negated immediately.
map_one_to_one({aten._neg_view.default: ge.Neg, aten._neg_view_copy.default: ge.Neg})


@converter(aten.polar.default)
def polar(abs, angle, *, meta_outputs):
    """abs * (cos(angle) + i sin(angle))"""
    real, imag = ge.Mul(abs, ge.Cos(angle)), ge.Mul(abs, ge.Sin(angle))
    return ge.Complex(real, imag, Tout=meta_outputs.dtype)
