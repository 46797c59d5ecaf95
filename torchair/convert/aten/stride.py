"""ATen ops that depend on memory layout: strided windows, diagonals, sliding windows.

A tensor of the IR is a separate contiguous array. An FX tensor is such an array only if its strides match,
and the strided ops are converted only then; `as_strided` also where a permutation of the dims makes it one.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.aten.scatter import write_at
from torchair.convert.aten.shape import END
from torchair.convert.base.operands import INT64, cast, dim_of, pack, same_size, size_of, sizes
from torchair.convert.base.registry import converter
from torchair.ge.host import Host, is_symbol

aten = torch.ops.aten


def why_not_own_array(self, *_, **__):
    """Return why a tensor is not a separate contiguous array, or None."""
    return None if isinstance(self.meta, Host) else _why_not_whole(self, range(self.rank))


def why_not_permuted_array(self, *_, **__):
    """Return why a tensor is not a separate contiguous array with permuted dims, or None."""
    return None if isinstance(self.meta, Host) else _why_not_whole(self, _memory_order(self))


def _why_not_whole(self, order):
    """Return why the dims in this order, outermost first, do not fill a storage, or None."""
    expected, sides, steps = 1, sizes(self), self.meta.stride()
    for dim in reversed(order):
        if not same_size(steps[dim], expected) and not same_size(sides[dim], 1):
            return "the tensor is a view with its own strides"
        expected = expected * sides[dim]
    offset = self.meta.storage_offset()
    whole = _hint(self.meta.untyped_storage().nbytes()) == _hint(expected * self.meta.dtype.itemsize)
    return None if same_size(offset, 0) and whole else "the tensor is part of a larger one"


def _memory_order(self):
    """Return the dims from the largest stride to the smallest; unchanged if a stride is not known."""
    steps = [_hint(step) for step in self.meta.stride()]
    dims = range(self.rank)
    return list(dims) if None in steps else sorted(dims, key=lambda dim: -steps[dim])


def _hint(number):
    """Return the traced value of a symbol: the bytes of a storage may use other symbols."""
    return number.node.hint if is_symbol(number) else number


@converter(aten.as_strided.default, only=why_not_permuted_array)
def as_strided(self, size, stride, storage_offset=None):
    """Return a window with any strides into memory, in which the dims may be permuted."""
    order = list(range(self.rank)) if isinstance(self.meta, Host) else _memory_order(self)
    array = self if order == sorted(order) else ge.Transpose(self, order)
    return ge.AsStrided(array, size, stride, pack([storage_offset or 0]))


@converter(aten.as_strided_scatter.default, only=why_not_own_array)
def as_strided_scatter(self, src, size, stride, storage_offset=None):
    """Return self with the window replaced by `src`."""
    steps, total = [], 1
    for dim in reversed(range(src.rank)):
        steps.append(total)
        extent = size_of(src, dim)
        numbers = isinstance(total, int) and isinstance(extent, int)
        total = total * extent if numbers else ge.Mul(cast(total, INT64), cast(extent, INT64))
    return ge.ViewCopy(
        ge.TensorMove(self), size, stride, pack([storage_offset or 0]),
        cast(src, self.dtype), size, pack(steps[::-1]), [0],
    )  # fmt: skip


@converter(aten.diagonal.default)
def diagonal(self, offset=0, dim1=0, dim2=1):
    """Return the elements of two dims whose indices differ by `offset`, as a new last dim."""
    matrices = ge.Transpose(self, _matrix_order(self.rank, dim1, dim2))
    if offset:
        axis = self.rank - (1 if offset > 0 else 2)
        matrices = ge.StridedSliceV2(matrices, [abs(offset)], [END], [axis], [1])
    return ge.MatrixDiagPart(matrices)


@converter(aten.diagonal_scatter.default)
def diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    """Return self with a diagonal replaced by `src`."""
    order = _matrix_order(self.rank, dim1, dim2)
    count = size_of(src, -1)
    line = ge.Range(cast(0, INT64), cast(count, INT64), cast(1, INT64))
    shifted = ge.Add(line, cast(abs(offset), INT64)) if offset else line
    rows, columns = (line, shifted) if offset >= 0 else (shifted, line)
    written = write_at(
        ge.Transpose(self, order), [None] * (self.rank - 2) + [rows, columns], cast(src, self.dtype)
    )
    return ge.Transpose(written, sorted(range(self.rank), key=order.__getitem__))


def _matrix_order(rank, dim1, dim2):
    """Return the dims with `dim1` and `dim2` at the end."""
    last = [dim_of(dim1, rank), dim_of(dim2, rank)]
    return [dim for dim in range(rank) if dim not in last] + last


@converter(aten.unfold.default)
def unfold(self, dimension, size, step):
    """Return sliding windows of a dim, as a new last dim."""
    if not self.rank or not isinstance(size, int) or not isinstance(step, int):
        raise NotImplementedError("the tensor has no dims, or windows of symbolic size")
    axis = dim_of(dimension, self.rank)
    extent = size_of(self, axis)
    if isinstance(extent, int):
        stop = (extent - size) // step * step + 1
    else:
        stop = ge.Add(ge.Sub(extent, cast(size, INT64)), cast(1, INT64))
    starts = ge.Range(cast(0, INT64), cast(stop, INT64), cast(step, INT64))
    within = ge.Range(cast(0, INT64), cast(size, INT64), cast(1, INT64))
    windows = ge.GatherV2(self, ge.Add(ge.Unsqueeze(starts, axes=[1]), within), [axis])
    order = [dim for dim in range(self.rank + 1) if dim != axis + 1] + [axis + 1]
    return ge.Transpose(windows, order)


@converter(aten.sym_stride.int, only=why_not_own_array)
def sym_stride(self, dim):
    """Return the product of the sizes after a dim."""
    steps = ge.StridedSliceV2(ge.Shape(self, dtype=INT64), [dim_of(dim, self.rank) + 1], [END], [0], [1])
    return cast(ge.ReduceProdD(steps, axes=[0]), INT64)
