"""Ops on whole lists of tensors. torch has the same ops, which compile to joint kernels."""

from __future__ import annotations

import torch

from torchair.core.kernel_params import Int, Number
from torchair.engine.registry import kernel, torch_kernels

aten = torch.ops.aten

_UNARY = (
    "Abs Acos Asin Atan Cos Cosh Erf Erfc Exp Expm1 Log Log10 Log1p Log2 "
    "Neg Reciprocal Sigmoid Sin Sinh Sqrt Tan Tanh"
)
torch_kernels(
    {f"Foreach{name}": getattr(aten, f"_foreach_{name.lower()}").default for name in _UNARY.split()}
)
torch_kernels({"ForeachACos": aten._foreach_acos.default, "ForeachASin": aten._foreach_asin.default})
torch_kernels({"ForeachATan": aten._foreach_atan.default})
torch_kernels({
    "ForeachMulList": aten._foreach_mul.List, "ForeachDivList": aten._foreach_div.List,
    "ForeachMaximumList": aten._foreach_maximum.List, "ForeachMinimumList": aten._foreach_minimum.List,
    "ForeachPowList": aten._foreach_pow.List,
})  # fmt: skip


def _with_number(overload):
    """Apply an op to a list and one number."""

    def run(x, scalar: Number):
        return overload(x, scalar)

    return run


def _with_numbers(fn):
    """Apply an op to a list and one number per tensor, which is data here."""

    def run(x, scalars):
        pairs = zip(x, scalars.unbind(), strict=True)
        return [_narrow(fn(tensor, number), tensor) for tensor, number in pairs]

    return run


def _narrow(made, like):
    """Cast results back: a number widens no result, such as INT64 with INT32 or FLOAT with halves."""
    same_kind = made.dtype.is_floating_point == like.dtype.is_floating_point
    return made.to(like.dtype) if same_kind else made


for _name, _fn in {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Maximum": torch.maximum,
    "Minimum": torch.minimum, "Pow": torch.pow,
}.items():  # fmt: skip
    kernel(f"Foreach{_name}Scalar")(_with_number(getattr(aten, f"_foreach_{_name.lower()}").Scalar))
    kernel(f"Foreach{_name}ScalarList")(_with_numbers(_fn))


@kernel("ForeachAddList")
def add_list(x1, x2, alpha: Number):
    """x1 + alpha * x2."""
    return aten._foreach_add.List(x1, x2, alpha=alpha)


@kernel("ForeachSubList")
def sub_list(x1, x2, alpha: Number):
    """x1 - alpha * x2."""
    return aten._foreach_sub.List(x1, x2, alpha=alpha)


@kernel("ForeachAddcmulScalar")
def addcmul(x1, x2, x3, scalar: Number):
    """x1 + scalar * x2 * x3."""
    return aten._foreach_addcmul.Scalar(x1, x2, x3, scalar)


@kernel("ForeachAddcdivScalar")
def addcdiv(x1, x2, x3, scalar: Number):
    """x1 + scalar * x2 / x3."""
    return aten._foreach_addcdiv.Scalar(x1, x2, x3, scalar)


@kernel("ForeachAddcmulList", "ForeachAddcmulScalarList")
def addcmul_list(x1, x2, x3, scalars):
    """x1 + scalar * x2 * x3, one scalar per tensor; halves are rounded once."""
    rows = zip(x1, x2, x3, scalars.unbind(), strict=True)
    return [(_wide(a) + number * _wide(b) * c).to(a.dtype) for a, b, c, number in rows]


@kernel("ForeachAddcdivList", "ForeachAddcdivScalarList")
def addcdiv_list(x1, x2, x3, scalars):
    """x1 + scalar * x2 / x3, one scalar per tensor; halves are rounded once."""
    rows = zip(x1, x2, x3, scalars.unbind(), strict=True)
    return [(_wide(a) + number * _wide(b) / c).to(a.dtype) for a, b, c, number in rows]


def _wide(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@kernel("ForeachLerpList")
def lerp_list(x1, x2, weight):
    """x1 + weight * (x2 - x1), one tensor of weights per pair; weights may be wider."""
    rows = list(zip(x1, x2, weight, strict=True))
    if all(a.dtype == by.dtype for a, _, by in rows):
        return aten._foreach_lerp.List(x1, x2, weight)
    return [torch.lerp(a.to(by.dtype), b.to(by.dtype), by).to(a.dtype) for a, b, by in rows]


@kernel("ForeachLerpScalar")
def lerp(x1, x2, weight: Number):
    """x1 + weight * (x2 - x1)."""
    return aten._foreach_lerp.Scalar(x1, x2, weight)


@kernel("ForeachNorm")
def norm(x, scalar: Number):
    """Return the norm of every tensor; `scalar` is its order."""
    return aten._foreach_norm.Scalar(x, scalar)


@kernel("ForeachPowScalarAndTensor")
def pow_of_number(scalar: Number, x):
    """Raise the number to the power of every tensor."""
    return aten._foreach_pow.ScalarAndTensor(scalar, x)


_ROUNDING = {2: torch.floor, 3: torch.ceil, 4: torch.round, 5: torch.trunc, 7: torch.frac}


@kernel("ForeachRoundOffNumber")
def round_off(x, roundMode: Int):
    """Round: 2 down, 3 up, 4 to the nearest, 5 toward zero; 7 returns the fraction that truncation
    removes.
    """
    return [_ROUNDING[roundMode](tensor) for tensor in x]
