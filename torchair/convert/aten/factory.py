"""ATen ops that create tensors from sizes and numbers."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import INT32, cast, promote, shape_of, torch_dtype
from torchair.convert.base.registry import converter
from torchair.ge.graph import Tensor

aten = torch.ops.aten


def _fill(size, value, meta):
    """Fill a tensor of `size` with a number; without dims return the number itself."""
    number = cast(value, meta.dtype)
    return number if isinstance(size, list) and not size else ge.Fill(size, number)


@converter(aten.full.default)
def full(size, fill_value, *, meta_outputs, **_):
    """Fill with one number."""
    return _fill(size, fill_value, meta_outputs)


@converter(aten.full_like.default)
def full_like(self, fill_value, *, meta_outputs, **_):
    """Fill with one number in the shape of self."""
    return _fill(shape_of(self), fill_value, meta_outputs)


@converter(aten.new_full.default)
def new_full(self, size, fill_value, *, meta_outputs, **_):
    """Fill with one number, by default in the dtype of self."""
    return _fill(size, fill_value, meta_outputs)


@converter(aten.fill.Scalar, aten.fill.Tensor)
def fill(self, value, *, meta_outputs):
    """Fill with one value."""
    return _fill(shape_of(self), value, meta_outputs)


def _constant(value):
    """Create a converter from sizes to one number."""

    def run(size, *, meta_outputs, **_):
        return _fill(size, value, meta_outputs)

    return run


def _new_constant(value):
    """Create a converter from sizes to one number; `self` gives only the dtype."""

    def run(self, size, *, meta_outputs, **_):
        return _fill(size, value, meta_outputs)

    return run


def _constant_like(op, value):
    """Create a converter that uses the op with its input if that already has the right dtype."""

    def run(self, *, meta_outputs, **_):
        if self.dtype == meta_outputs.dtype:
            return op(self)
        return _fill(shape_of(self), value, meta_outputs)

    return run


for _target, _row in {
    aten.zeros.default: _constant(0),
    aten.ones.default: _constant(1),
    aten.new_zeros.default: _new_constant(0),
    aten.new_ones.default: _new_constant(1),
    aten.zeros_like.default: _constant_like(ge.ZerosLike, 0),
    aten.ones_like.default: _constant_like(ge.OnesLike, 1),
    aten.zero.default: _constant_like(ge.ZerosLike, 0),
}.items():
    converter(_target)(_row)


def _empty(size, meta):
    """Return uninitialized memory.

    The op fills it if deterministic algorithms are enabled. Strides and the order of the dims are restored at
    the end of the graph.
    """
    return ge.Empty(cast(size, INT32), dtype=meta.dtype)


@converter(aten.empty.memory_format)
def empty(size, *, meta_outputs, **_):
    """Return uninitialized memory."""
    return _empty(size, meta_outputs)


@converter(aten.empty_like.default)
def empty_like(self, *, meta_outputs, **_):
    """Return uninitialized memory in the shape of self."""
    return _empty(shape_of(self), meta_outputs)


@converter(aten.new_empty.default)
def new_empty(self, size, *, meta_outputs, **_):
    """Return uninitialized memory."""
    return _empty(size, meta_outputs)


@converter(aten.empty_strided.default)
def empty_strided(size, stride, *, meta_outputs, **_):
    """Return uninitialized memory."""
    return _empty(size, meta_outputs)


@converter(aten.empty_permuted.default)
def empty_permuted(size, physical_layout, *, meta_outputs, **_):
    """Return uninitialized memory."""
    return _empty(size, meta_outputs)


@converter(aten.new_empty_strided.default)
def new_empty_strided(self, size, stride, *, meta_outputs, **_):
    """Return uninitialized memory."""
    return _empty(size, meta_outputs)


@converter(aten.scalar_tensor.default)
def scalar_tensor(s, *, meta_outputs, **_):
    """Return a number as a tensor."""
    return cast(s, meta_outputs.dtype)


@converter(aten.arange.default)
def arange(end, *, meta_outputs, **_):
    """Return 0, 1, … below `end`."""
    return arange_step(0, end, 1, meta_outputs=meta_outputs)


@converter(aten.arange.start)
def arange_start(start, end, *, meta_outputs, **_):
    """Return start, start + 1, … below `end`."""
    return arange_step(start, end, 1, meta_outputs=meta_outputs)


@converter(aten.arange.start_step)
def arange_step(start, end, step=1, *, meta_outputs, **_):
    """Return numbers from start in steps, below `end`, computed in a type that holds the three numbers."""
    numbers = (start, end, step)
    dtype = torch.int32 if meta_outputs.torch_dtype is torch.int32 else torch.int64
    if not all(_is_integer(number) for number in numbers):
        if (
            any(isinstance(number, Tensor) for number in numbers)
            or not meta_outputs.torch_dtype.is_floating_point
        ):
            raise NotImplementedError("an integer range has fractional bounds")
        exact = all(float(torch.tensor(number, dtype=torch.float32)) == number for number in numbers)
        dtype = torch.float32 if exact else torch.float64
    return cast(ge.Range(*promote(*numbers, to=dtype)), meta_outputs.dtype)


def _is_integer(number) -> bool:
    return torch_dtype(number) is torch.int64 if isinstance(number, Tensor) else isinstance(number, int)


@converter(aten.linspace.default)
def linspace(start, end, steps, *, meta_outputs, **_):
    """Return `steps` points from start to end, both included."""
    if not meta_outputs.torch_dtype.is_floating_point:
        raise NotImplementedError("LinSpace computes in floats")
    dtype = torch.float64 if meta_outputs.torch_dtype is torch.float64 else torch.float32
    return cast(ge.LinSpace(cast(start, dtype), cast(end, dtype), steps), meta_outputs.dtype)


@converter(aten.eye.default, aten.eye.m)
def eye(n, m=None, *, meta_outputs, **_):
    """Return ones on the diagonal."""
    columns = n if m is None else m
    if isinstance(n, Tensor) or isinstance(columns, Tensor):
        raise NotImplementedError("the sizes of Eye are attributes and cannot be symbolic")
    return ge.Eye(num_rows=n, num_columns=columns, dtype=meta_outputs.dtype)
