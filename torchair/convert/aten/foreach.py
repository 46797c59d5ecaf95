"""ATen's `_foreach_` ops: one GE op for a whole list of tensors of one dtype. Mixed lists are declined."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.operands import FLOAT, INT64, cast, same_size, sizes, torch_dtype
from torchair.convert.registry import converter
from torchair.ge.graph import Tensor

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


def _dtype(meta, *lists):
    """The one dtype of all tensors and results; anything else is declined."""
    found = {torch_dtype(tensor) for tensors in lists for tensor in tensors} | {
        spec.torch_dtype for spec in meta
    }
    if len(found) != 1 or not found <= set(_DTYPES):
        raise NotImplementedError("a foreach op takes tensors of one dtype of up to 32 bits")
    for first, *rest in zip(*lists, strict=True):
        if any(
            tensor.rank != first.rank or not all(map(same_size, sizes(first), sizes(tensor)))
            for tensor in rest
        ):
            raise NotImplementedError("a foreach op does not broadcast")
    return found.pop()


def _number(value, dtype):
    """A number beside a list: in the dtype of the list, bf16 takes it in float32."""
    if (
        dtype is torch.float16
        and not isinstance(value, Tensor)
        and float(torch.tensor(value, dtype=dtype)) != value
    ):
        raise NotImplementedError("the number would be rounded to 16 bits")
    return cast(value, torch.float32 if dtype is torch.bfloat16 else dtype)


def _unary(op):
    """A function of every tensor."""

    def run(self, *, meta_outputs):
        _dtype(meta_outputs, self)
        return op(self, outputs=len(self))

    return run


for _name in [
    "Abs", "Acos", "Asin", "Atan", "Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Log", "Log10", "Log1p",
    "Log2", "Neg", "Reciprocal", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
]:  # fmt: skip
    converter(getattr(aten, f"_foreach_{_name.lower()}").default)(_unary(getattr(ge, f"Foreach{_name}")))


def _with_number(op):
    """Lists, then one number for all or one per tensor."""

    def run(*lists_and_number, meta_outputs):
        *lists, number = lists_and_number
        dtype = _dtype(meta_outputs, *lists)
        return op(*lists, _number(number, dtype), outputs=len(lists[0]))

    return run


def _with_list(op):
    """Two lists, pair by pair."""

    def run(self, other, *, meta_outputs):
        _dtype(meta_outputs, self, other)
        return op(self, other, outputs=len(self))

    return run


def _with_scaled_list(op):
    """Two lists, the second times alpha."""

    def run(self, other, *, alpha=1, meta_outputs):
        dtype = _dtype(meta_outputs, self, other)
        return op(self, other, _number(alpha, dtype), outputs=len(self))

    return run


# ATen's name, the middle of GE's name, and what a pair of lists is converted by.
for _name, _middle, _pairs in (
    ("add", "Add", _with_scaled_list),
    ("sub", "Sub", _with_scaled_list),
    ("mul", "Mul", _with_list),
    ("div", "Div", _with_list),
    ("maximum", "Maximum", _with_list),
    ("minimum", "Minimum", _with_list),
    ("clamp_min", "Maximum", _with_list),
    ("clamp_max", "Minimum", _with_list),
    ("pow", "Pow", _with_list),
):
    _packet = getattr(aten, f"_foreach_{_name}")
    converter(_packet.Scalar)(_with_number(getattr(ge, f"Foreach{_middle}Scalar")))
    converter(_packet.ScalarList)(_with_number(getattr(ge, f"Foreach{_middle}ScalarList")))
    converter(_packet.List)(_pairs(getattr(ge, f"Foreach{_middle}List")))

for _name, _middle in (("addcmul", "Addcmul"), ("addcdiv", "Addcdiv")):
    _packet = getattr(aten, f"_foreach_{_name}")
    converter(_packet.ScalarList)(_with_number(getattr(ge, f"Foreach{_middle}ScalarList")))
    converter(_packet.Tensor)(_with_number(getattr(ge, f"Foreach{_middle}List")))


def _accumulate(op):
    """self + value * (one combined with the other)."""

    def run(self, tensor1, tensor2, value=1, *, meta_outputs):
        dtype = _dtype(meta_outputs, self, tensor1, tensor2)
        return op(self, tensor1, tensor2, _number(value, dtype), outputs=len(self))

    return run


converter(aten._foreach_addcmul.Scalar)(_accumulate(ge.ForeachAddcmulScalar))
converter(aten._foreach_addcdiv.Scalar)(_accumulate(ge.ForeachAddcdivScalar))


@converter(aten._foreach_lerp.Scalar)
def lerp_scalar(self, tensors1, weight, *, meta_outputs):
    """From one list toward the other by one weight."""
    _dtype(meta_outputs, self, tensors1)
    return ge.ForeachLerpScalar(self, tensors1, cast(weight, FLOAT), outputs=len(self))


@converter(aten._foreach_lerp.List)
def lerp_list(self, tensors1, weights, *, meta_outputs):
    """From one list toward the other by weights of the same shapes."""
    _dtype(meta_outputs, self, tensors1, weights)
    return ge.ForeachLerpList(self, tensors1, weights, outputs=len(self))


@converter(aten._foreach_norm.Scalar)
def norm(self, ord=2, dtype=None, *, meta_outputs):
    """The norm of every tensor."""
    if dtype is not None or {torch_dtype(tensor) for tensor in self} != {
        spec.torch_dtype for spec in meta_outputs
    }:
        raise NotImplementedError("ForeachNorm keeps the dtype")
    return ge.ForeachNorm(self, cast(ord, FLOAT), outputs=len(self))


@converter(aten._foreach_pow.ScalarAndTensor)
def pow_of_number(self, exponent, *, meta_outputs):
    """A number to the power of every tensor."""
    dtype = _dtype(meta_outputs, exponent)
    return ge.ForeachPowScalarAndTensor(_number(self, dtype), exponent, outputs=len(exponent))


def _rounding(mode):
    """Rounding of floats; integers are round already."""

    def run(self, *, meta_outputs):
        if not _dtype(meta_outputs, self).is_floating_point:
            return [ge.TensorMove(tensor) for tensor in self]
        return ge.ForeachRoundOffNumber(self, cast(mode, INT64), outputs=len(self))

    return run


for _name, _mode in (("floor", 2), ("ceil", 3), ("round", 4), ("trunc", 5), ("frac", 7)):
    converter(getattr(aten, f"_foreach_{_name}").default)(_rounding(_mode))
