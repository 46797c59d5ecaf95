"""ATen ops that rearrange: sizes and order of dims, parts, joins. Padding: `pad`, writing: `scatter`."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import (
    INT64,
    cast,
    dim_of,
    dims_of,
    pack,
    promote,
    same_size,
    shape_of,
    size_of,
    sizes,
)
from torchair.convert.base.registry import converter
from torchair.ge.host import is_symbol

aten = torch.ops.aten

# GE's value for "to the end of the dim".
END = 2**31 - 1


@converter(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def reshape(self, size):
    """Change the sizes; the elements stay the same."""
    return ge.Reshape(self, size)


@converter(aten.permute.default)
def permute(self, dims):
    """Permute the dims."""
    return ge.Transpose(self, [dim_of(dim, self.rank) for dim in dims])


@converter(aten.t.default)
def t(self):
    """Swap rows and columns."""
    return ge.Transpose(self, [1, 0]) if self.rank == 2 else self


@converter(aten.transpose.int)
def transpose(self, dim0, dim1):
    """Swap two dims."""
    order = list(range(self.rank))
    if self.rank:
        a, b = dim_of(dim0, self.rank), dim_of(dim1, self.rank)
        order[a], order[b] = b, a
    return ge.Transpose(self, order)


@converter(aten.expand.default)
def expand(self, size, *, implicit=False, meta_outputs):
    """Repeat dims of size 1; -1 keeps a dim."""
    before, after = sizes(self), meta_outputs.symsize
    if len(before) == len(after) and all(map(same_size, before, after)):
        return self
    return ge.BroadcastTo(self, size)


@converter(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(self, dim=None):
    """Remove the listed dims that have size 1; a symbolic size is not 1."""
    listed = [] if dim == [] else dims_of(dim, self.rank)
    axes = [
        axis for axis in listed if self.rank and not is_symbol(sizes(self)[axis]) and sizes(self)[axis] == 1
    ]
    return ge.Squeeze(self, axis=axes) if axes else self


@converter(aten.unsqueeze.default)
def unsqueeze(self, dim):
    """Insert a dim of size 1."""
    return ge.Unsqueeze(self, axes=[dim_of(dim, self.rank + 1)])


@converter(aten.slice.Tensor)
def slice_tensor(self, dim=0, start=None, end=None, step=1, *, meta_outputs):
    """Return self[start:end:step] in one dim."""
    dim = dim_of(dim, self.rank)
    if same_size(sizes(self)[dim], meta_outputs.symsize[dim]):
        return self
    begin, stop = bounds(start, end)
    return ge.StridedSliceV2(self, pack([begin]), pack([stop]), [dim], pack([step]))


def bounds(start, end):
    """Return begin and end of a slice as GE writes them: numbers or rank-0 tensors."""
    stop = END if end is None or (isinstance(end, int) and end > END) else end
    return (0 if start is None else start), stop


@converter(aten.select.int)
def select(self, dim, index):
    """Return one entry of a dim."""
    dim = dim_of(dim, self.rank)
    size = sizes(self)[dim]
    if isinstance(index, int) and index < 0 and not is_symbol(size):
        index += int(size)
    return ge.GatherV2(self, cast(index, INT64), [dim], negative_index_support=True)


@converter(aten.split.Tensor)
def split(self, split_size, dim=0, *, meta_outputs):
    """Split into parts of equal size; the last one is the rest."""
    return _split(self, pack([split_size] * (len(meta_outputs) - 1) + [-1]), dim, len(meta_outputs))


@converter(aten.split_with_sizes.default)
def split_with_sizes(self, split_sizes, dim=0, *, meta_outputs):
    """Split into parts of given sizes."""
    return _split(self, split_sizes, dim, len(meta_outputs))


def _split(x, parts, dim, count):
    if count == 1:
        return [x]
    return ge.SplitV(x, parts, dim_of(dim, x.rank), num_split=count, outputs=count)


@converter(aten.unbind.int)
def unbind(self, dim=0, *, meta_outputs):
    """Return the entries of a dim."""
    count = len(meta_outputs)
    return ge.Unpack(self, num=count, axis=dim_of(dim, self.rank), outputs=count)


@converter(aten.cat.default)
def cat(tensors, dim=0, *, meta_outputs):
    """Concatenate along a dim. ATen allows empty vectors among tensors of any rank."""
    parts = [part for part in tensors if not _is_empty_vector(part)] or list(tensors)
    parts = promote(*parts, to=meta_outputs.dtype)
    if len(parts) == 1:
        return ge.Identity(parts[0])
    return ge.ConcatV2(parts, dim_of(dim, meta_outputs.rank), N=len(parts))


def _is_empty_vector(x):
    return x.rank == 1 and not is_symbol(sizes(x)[0]) and sizes(x)[0] == 0


@converter(aten.stack.default)
def stack(tensors, dim=0, *, meta_outputs):
    """Stack along a new dim."""
    parts = promote(*tensors, to=meta_outputs.dtype)
    return ge.Pack(parts, axis=dim_of(dim, meta_outputs.rank), N=len(parts))


@converter(aten.repeat.default)
def repeat(self, repeats):
    """Repeat the tensor along each dim; new dims come first."""
    return ge.Tile(self, repeats) if repeats else self


@converter(aten.flip.default)
def flip(self, dims):
    """Reverse the listed dims."""
    return ge.ReverseV2(self, dims_of(dims, self.rank)) if dims and self.rank else ge.Identity(self)


@converter(aten.roll.default)
def roll(self, shifts, dims=()):
    """Roll with wrap-around; without dims the tensor is flattened."""
    if not self.rank:
        return ge.Identity(self)
    if isinstance(shifts, ge.Tensor):
        return _roll_by_symbols(self, shifts, dims)
    if not dims:
        line = ge.Roll(ge.Reshape(self, [-1]), shifts=list(shifts), dims=[0])
        return ge.Reshape(line, shape_of(self))
    return ge.Roll(self, shifts=list(shifts), dims=dims_of(dims, self.rank))


def _roll_by_symbols(x, shifts, dims):
    """Roll by symbolic shifts, which cannot be attributes: gather from computed positions."""
    if not dims:
        line = _roll_by_symbols(ge.Reshape(x, [-1]), shifts, [0])
        return ge.Reshape(line, shape_of(x))
    for place, dim in enumerate(dims_of(dims, x.rank)):
        size = cast(size_of(x, dim), INT64)
        shift = ge.Gather(shifts, cast(place, INT64))
        line = ge.Range(cast(0, INT64), size, cast(1, INT64))
        x = ge.GatherV2(x, ge.FloorMod(ge.Sub(line, shift), size), [dim])
    return x


@converter(aten.tril.default)
def tril(self, diagonal=0):
    """Return the lower triangle."""
    return ge.Tril(self, diagonal=_static(diagonal))


@converter(aten.triu.default)
def triu(self, diagonal=0):
    """Return the upper triangle."""
    return ge.Triu(self, diagonal=_static(diagonal))


def _static(number):
    if not isinstance(number, int):
        raise NotImplementedError("the diagonal is symbolic")
    return number
