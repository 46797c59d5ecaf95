"""Symbols: sizes of tensors and Python arithmetic on them, as IR ops on rank-0 tensors."""

from __future__ import annotations

import math
import operator

import torch

from torchair import ge
from torchair.convert.operands import FLOAT, INT64, cast, size_of
from torchair.convert.registry import converter, rename

aten = torch.ops.aten


def _arithmetic(op):
    """Numbers on both sides in the dtype of the symbol."""

    def run(a, b, *, meta_outputs):
        return op(cast(a, meta_outputs.dtype), cast(b, meta_outputs.dtype))

    return run


for _target, _op in {
    operator.add: ge.Add,
    operator.sub: ge.Sub,
    operator.mul: ge.Mul,
    operator.pow: ge.Pow,
    operator.floordiv: ge.FloorDiv,
    operator.mod: ge.Mod,
    torch.sym_max: ge.Maximum,
    torch.sym_min: ge.Minimum,
}.items():
    converter(_target)(_arithmetic(_op))

rename({operator.neg: ge.Neg})


@converter(operator.truediv)
def truediv(a, b):
    """True division, in float."""
    return ge.Div(cast(a, FLOAT), cast(b, FLOAT))


@converter(math.floor)
def floor(x):
    """Down to the next integer."""
    return cast(ge.Floor(x), INT64)


@converter(math.ceil)
def ceil(x):
    """Up to the next integer."""
    return cast(ge.Ceil(x), INT64)


@converter(torch.sym_float)
def sym_float(x):
    """An integer as a float."""
    return cast(x, FLOAT)


@converter(torch.sym_sum)
def sym_sum(args):
    """The sum of several symbols; they arrive packed."""
    return ge.ReduceSum(args, [0])


@converter(aten.sym_size.int)
def sym_size(self, dim):
    """One size of a tensor."""
    return size_of(self, dim)


@converter(aten.sym_numel.default)
def sym_numel(self):
    """The number of elements."""
    return cast(ge.ReduceProdD(ge.Shape(self, dtype=INT64), axes=[0]), INT64)
