"""Symbols: sizes of tensors and Python arithmetic on them, as IR ops on rank-0 tensors."""

from __future__ import annotations

import builtins
import functools
import math
import operator

import torch

from torchair import ge
from torchair.convert.base.operands import BOOL, FLOAT, INT64, cast, result_type, size_of, torch_dtype
from torchair.convert.base.registry import converter
from torchair.fxgraph.size_nodes import SYM_MATH
from torchair.ge.graph import Tensor

aten = torch.ops.aten


def _arithmetic(op, on_bool=None):
    """Create a converter with numbers on both sides in the dtype of the result."""

    def run(*operands, meta_outputs):
        chosen = on_bool if on_bool is not None and meta_outputs.torch_dtype is torch.bool else op
        return chosen(*(cast(operand, meta_outputs.dtype) for operand in operands))

    return run


def _comparison(op):
    """Create a converter with numbers on both sides in their common dtype."""

    def run(a, b):
        shared = result_type(a, b)
        dtype = FLOAT if shared.is_floating_point else INT64
        return op(cast(a, dtype), cast(b, dtype))

    return run


for _target, _row in {
    operator.add: _arithmetic(ge.Add),
    operator.sub: _arithmetic(ge.Sub),
    operator.mul: _arithmetic(ge.Mul),
    operator.pow: _arithmetic(ge.Pow),
    operator.floordiv: _arithmetic(ge.FloorDiv),
    operator.mod: _arithmetic(ge.FloorMod),
    operator.neg: _arithmetic(ge.Neg),
    operator.pos: _arithmetic(ge.Identity),
    operator.lshift: _arithmetic(ge.LeftShift),
    operator.rshift: _arithmetic(ge.RightShift),
    operator.and_: _arithmetic(ge.BitwiseAnd, on_bool=ge.LogicalAnd),
    operator.or_: _arithmetic(ge.BitwiseOr, on_bool=ge.LogicalOr),
    operator.xor: _arithmetic(ge.BitwiseXor, on_bool=ge.NotEqual),
    operator.eq: _comparison(ge.Equal),
    operator.ne: _comparison(ge.NotEqual),
    operator.lt: _comparison(ge.Less),
    operator.le: _comparison(ge.LessEqual),
    operator.gt: _comparison(ge.Greater),
    operator.ge: _comparison(ge.GreaterEqual),
    operator.abs: _arithmetic(ge.Abs),
    torch.sym_max: _arithmetic(ge.Maximum),
    torch.sym_min: _arithmetic(ge.Minimum),
}.items():
    converter(_target)(_row)


def _function(op):
    """Create a converter for a function of floats."""

    def run(x):
        return op(cast(x, FLOAT))

    return run


_FUNCTIONS = {
    "sqrt": ge.Sqrt, "cos": ge.Cos, "cosh": ge.Cosh, "sin": ge.Sin, "sinh": ge.Sinh, "tan": ge.Tan,
    "tanh": ge.Tanh, "asin": ge.Asin, "acos": ge.Acos, "atan": ge.Atan,
    "log2": functools.partial(ge.Log, base=2.0),
}  # fmt: skip
for _name, _sym in SYM_MATH.items():
    converter(_sym)(_function(_FUNCTIONS[_name]))


def _rounding(op):
    """Create a converter from a float to an integer; an integer stays."""

    def run(x):
        return ge.Identity(x) if x.dtype == INT64 else cast(op(x), INT64)

    return run


for _target, _op in {
    math.floor: ge.Floor,
    math.ceil: ge.Ceil,
    math.trunc: ge.Trunc,
    torch.sym_int: ge.Trunc,
}.items():
    converter(_target)(_rounding(_op))


@converter(builtins.round)
def round_(x, ndigits=None, *, meta_outputs):
    """Round to nearest, halves to even; with digits the result stays a float."""
    if ndigits:
        raise NotImplementedError("Round supports no digits")
    return cast(ge.Round(x), meta_outputs.dtype)


@converter(operator.truediv)
def truediv(a, b):
    """Divide exactly, in float."""
    return ge.Div(cast(a, FLOAT), cast(b, FLOAT))


@converter(torch.sym_float)
def sym_float(x):
    """Convert an integer to a float."""
    return cast(x, FLOAT)


@converter(torch.sym_not)
def sym_not(x):
    """Negate a condition."""
    return ge.LogicalNot(cast(x, BOOL))


@converter(torch.sym_ite)
def sym_ite(condition, then, otherwise, *, meta_outputs):
    """Select one number or the other."""
    return ge.SelectV2(condition, cast(then, meta_outputs.dtype), cast(otherwise, meta_outputs.dtype))


@converter(torch.sym_sum)
def sym_sum(args):
    """Sum several symbols; they arrive packed."""
    return ge.ReduceSum(args, [0]) if isinstance(args, Tensor) else sum(args)


@converter(aten.sym_size.int)
def sym_size(self, dim):
    """Return one size of a tensor."""
    return size_of(self, dim)


@converter(aten.sym_numel.default)
def sym_numel(self):
    """The number of elements."""
    return cast(ge.ReduceProdD(ge.Shape(self, dtype=INT64), axes=[0]), INT64)


@converter(aten._local_scalar_dense.default)
def local_scalar_dense(self):
    """Return the number in a tensor of one element: the tensor itself, which is read where it is made."""
    dtype = torch_dtype(self)
    if dtype.is_complex:
        raise NotImplementedError("complex symbols do not exist")
    number = ge.Reshape(self, [])
    if dtype.is_floating_point:
        return number if dtype == torch.float64 else cast(number, FLOAT)
    return cast(number, BOOL if dtype == torch.bool else INT64)


@converter(
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
)
def assertion(*_, **__):
    """Ignore assertions of the tracer; there is nothing to compute."""
