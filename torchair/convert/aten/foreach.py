"""ATen's `_foreach_` ops: one GE op for a whole list of tensors of one dtype; other lists use one op per
tensor.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import FLOAT, cast, same_size, sizes, torch_dtype
from torchair.convert.base.registry import candidates, converter
from torchair.ge.graph import Tensor

aten = torch.ops.aten
INT8 = ge.DataType.DT_INT8
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


def _dtype(meta, *lists):
    """Return the one dtype of all tensors and results; decline if there are several."""
    found = {torch_dtype(tensor) for tensors in lists for tensor in tensors} | {
        spec.torch_dtype for spec in meta
    }
    if len(found) != 1 or not found <= set(_DTYPES):
        raise NotImplementedError("a foreach op needs tensors of one dtype with up to 32 bits")
    for first, *rest in zip(*lists, strict=True):
        if any(
            tensor.rank != first.rank or not all(map(same_size, sizes(first), sizes(tensor)))
            for tensor in rest
        ):
            raise NotImplementedError("a foreach op does not broadcast")
    return found.pop()


# GE's dtype of one number for all tensors of a list, and of one number each; else that of the list.
_ONE = {torch.bfloat16: torch.float32}
_EACH = {torch.int32: torch.int64}


def _number(value, dtype: torch.dtype):
    """Convert a number for a list, or a list of numbers, to GE's dtype."""
    if isinstance(value, list) and any(isinstance(item, Tensor) for item in value):
        raise NotImplementedError("one of the numbers is symbolic")
    wanted = (_EACH if isinstance(value, list) else _ONE).get(dtype, dtype)
    if not isinstance(value, Tensor) and not _is_exact(value, wanted):
        raise NotImplementedError("the number would be rounded to 16 bits")
    return cast(value, wanted)


def _is_exact(value, dtype):
    """Return whether numbers are exact in a dtype. Only halves matter: ATen computes with all digits
    there.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return True
    exact = torch.tensor(value, dtype=torch.float64)
    return torch.equal(exact.to(dtype).double().nan_to_num(), exact.nan_to_num())


def _alone(target, rows, meta, last="", **kwargs):
    """Convert a list that no GE op supports: use the single-tensor op for every row of arguments.

    `last` is the name of the last argument if it must be passed by name.
    """
    found = next(iter(candidates(target)), None)
    if found is None:
        raise NotImplementedError(f"{target} has no converter")
    results = []
    for row, spec in zip(rows, meta, strict=True):
        extra = {"meta_outputs": spec} if found.wants_meta else {}
        if last:
            *row, extra[last] = row
        results.append(found.fn(*row, **kwargs, **extra))
    return results


def _or_alone(run, target, last=""):
    """Wrap `run`; a list that does not fit GE's op goes one by one through `target`."""

    def tried(self, *args, meta_outputs, **kwargs):
        try:
            return run(self, *args, meta_outputs=meta_outputs, **kwargs)
        except NotImplementedError:
            columns = [arg if isinstance(arg, list) else [arg] * len(self) for arg in args]
            return _alone(target, zip(self, *columns, strict=True), meta_outputs, last, **kwargs)

    return tried


def _unary(op):
    """Create a converter for a function of every tensor."""

    def run(self, *, meta_outputs):
        _dtype(meta_outputs, self)
        return op(self, outputs=len(self))

    return run


for _name in [
    "Abs", "Acos", "Asin", "Atan", "Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Log", "Log10", "Log1p",
    "Log2", "Neg", "Reciprocal", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
]:  # fmt: skip
    _one = getattr(aten, _name.lower()).default
    converter(getattr(aten, f"_foreach_{_name.lower()}").default)(
        _or_alone(_unary(getattr(ge, f"Foreach{_name}")), _one)
    )


def _with_number(op):
    """Create a converter for lists, then one number for all or one per tensor."""

    def run(*lists_and_number, meta_outputs):
        *lists, number = lists_and_number
        dtype = _dtype(meta_outputs, *lists)
        return op(*lists, _number(number, dtype), outputs=len(lists[0]))

    return run


def _with_list(op):
    """Create a converter for two lists, pair by pair."""

    def run(self, other, *, meta_outputs):
        _dtype(meta_outputs, self, other)
        return op(self, other, outputs=len(self))

    return run


def _with_scaled_list(op):
    """Create a converter for two lists, the second times alpha."""

    def run(self, other, *, alpha=1, meta_outputs):
        dtype = _dtype(meta_outputs, self, other)
        return op(self, other, _number(alpha, dtype), outputs=len(self))

    return run


# ATen's name, the middle of GE's name, the converter of a pair of lists, and the ops of one tensor and a
# number, and of two tensors.
for _name, _middle, _pairs, _by_number, _by_tensor in (
    ("add", "Add", _with_scaled_list, aten.add.Tensor, aten.add.Tensor),
    ("sub", "Sub", _with_scaled_list, aten.sub.Tensor, aten.sub.Tensor),
    ("mul", "Mul", _with_list, aten.mul.Tensor, aten.mul.Tensor),
    ("div", "Div", _with_list, aten.div.Tensor, aten.div.Tensor),
    ("maximum", "Maximum", _with_list, aten.clamp_min.default, aten.maximum.default),
    ("minimum", "Minimum", _with_list, aten.clamp_max.default, aten.minimum.default),
    ("clamp_min", "Maximum", _with_list, aten.clamp_min.default, aten.clamp_min.Tensor),
    ("clamp_max", "Minimum", _with_list, aten.clamp_max.default, aten.clamp_max.Tensor),
    ("pow", "Pow", _with_list, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor),
):
    _packet = getattr(aten, f"_foreach_{_name}")
    _one, _many, _list = (getattr(ge, f"Foreach{_middle}{kind}") for kind in ("Scalar", "ScalarList", "List"))
    converter(_packet.Scalar)(_or_alone(_with_number(_one), _by_number))
    converter(_packet.ScalarList)(_or_alone(_with_number(_many), _by_number))
    converter(_packet.List)(_or_alone(_pairs(_list), _by_tensor))


def _accumulate(op, target):
    """Create a converter for self + value * (one combined with the other)."""
    run_all = _or_alone(_with_number(op), target, last="value")

    def run(self, tensor1, tensor2, value=1, *, meta_outputs):
        return run_all(self, tensor1, tensor2, value, meta_outputs=meta_outputs)

    return run


for _name, _middle in (("addcmul", "Addcmul"), ("addcdiv", "Addcdiv")):
    _packet, _one = getattr(aten, f"_foreach_{_name}"), getattr(aten, _name).default
    converter(_packet.Scalar)(_accumulate(getattr(ge, f"Foreach{_middle}Scalar"), _one))
    converter(_packet.ScalarList)(_accumulate(getattr(ge, f"Foreach{_middle}ScalarList"), _one))
    converter(_packet.Tensor)(_with_number(getattr(ge, f"Foreach{_middle}List")))


@converter(aten._foreach_lerp.Scalar)
def lerp_scalar(self, tensors1, weight, *, meta_outputs):
    """Interpolate from one list to the other by one weight."""
    _dtype(meta_outputs, self, tensors1)
    return ge.ForeachLerpScalar(self, tensors1, cast(weight, FLOAT), outputs=len(self))


@converter(aten._foreach_lerp.List)
def lerp_list(self, tensors1, weights, *, meta_outputs):
    """Interpolate from one list to the other by weights of the same shapes."""
    dtype = _dtype(meta_outputs, self, tensors1, weights)
    # GE has no BF16 weights.
    weights = [cast(weight, _ONE.get(dtype, dtype)) for weight in weights]
    return ge.ForeachLerpList(self, tensors1, weights, outputs=len(self))


@converter(aten._foreach_norm.Scalar)
def norm(self, ord=2, dtype=None, *, meta_outputs):
    """Return the norm of every tensor."""
    if dtype is not None or {torch_dtype(tensor) for tensor in self} != {
        spec.torch_dtype for spec in meta_outputs
    }:
        raise NotImplementedError("ForeachNorm keeps the dtype")
    return ge.ForeachNorm(self, cast(ord, FLOAT), outputs=len(self))


@converter(aten._foreach_pow.ScalarAndTensor)
def pow_of_number(self, exponent, *, meta_outputs):
    """Raise a number to the power of every tensor."""
    dtype = _dtype(meta_outputs, exponent)
    number = cast(self, FLOAT) if dtype.is_floating_point else _number(self, dtype)
    return ge.ForeachPowScalarAndTensor(number, exponent, outputs=len(exponent))


def _rounding(mode):
    """Create a converter that rounds floats; integers need no rounding."""

    def run(self, *, meta_outputs):
        if not _dtype(meta_outputs, self).is_floating_point:
            return [ge.TensorMove(tensor) for tensor in self]
        return ge.ForeachRoundOffNumber(self, cast([mode], INT8), outputs=len(self))

    return run


for _name, _mode in (("floor", 2), ("ceil", 3), ("round", 4), ("trunc", 5), ("frac", 7)):
    _one = getattr(aten, _name).default
    converter(getattr(aten, f"_foreach_{_name}").default)(_or_alone(_rounding(_mode), _one))


def _each(target):
    """Create a converter for a function of every tensor for which GE has no list op."""

    def run(self, *, meta_outputs):
        return _alone(target, [(tensor,) for tensor in self], meta_outputs)

    return run


def _each_pair(target):
    """Create a converter for two lists, pair by pair."""

    def run(self, other, *, meta_outputs):
        return _alone(target, zip(self, other, strict=True), meta_outputs)

    return run


def _with_tensor(target):
    """Create a converter for every tensor with one tensor without dims."""

    def run(self, other, *, meta_outputs, **kwargs):
        return _alone(target, [(tensor, other) for tensor in self], meta_outputs, **kwargs)

    return run


# Overloads are named by text: not every torch has all of them.
for _name, _row in {
    "_foreach_rsqrt.default": _each(aten.rsqrt.default),
    "_foreach_sign.default": _each(aten.sign.default),
    "_foreach_lgamma.default": _each(aten.lgamma.default),
    "_foreach_clone.default": _each(aten.clone.default),
    "_foreach_max.default": _each(aten.max.default),
    "_foreach_mm.default": _each_pair(aten.mm.default),
    "_foreach_add.Tensor": _with_tensor(aten.add.Tensor),
    "_foreach_mul.Tensor": _with_tensor(aten.mul.Tensor),
    "_foreach_div.Tensor": _with_tensor(aten.div.Tensor),
}.items():
    converter(f"aten.{_name}")(_row)


@converter(aten._foreach_zero.default)
def zero(self):
    """Return zeros like every tensor."""
    return [ge.ZerosLike(tensor) for tensor in self]


@converter(aten._foreach_lerp.ScalarList)
def lerp_scalars(self, tensors1, weight, *, meta_outputs):
    """Interpolate from one list to the other, by a weight for each pair."""
    return _alone(aten.lerp.Scalar, zip(self, tensors1, weight, strict=True), meta_outputs)


@converter("aten._foreach_powsum.Scalar")
def powsum(self, ord=2, dtype=None, *, meta_outputs):
    """Return the sum of the powers of the sizes of all elements of every tensor."""
    wide = [cast(tensor, spec.dtype) for tensor, spec in zip(self, meta_outputs, strict=True)]
    powers = [ge.Pow(ge.Abs(tensor), cast(ord, tensor.dtype)) for tensor in wide]
    return [ge.ReduceSum(tensor, list(range(tensor.rank))) if tensor.rank else tensor for tensor in powers]
