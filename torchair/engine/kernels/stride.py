"""Strided windows and diagonals. A tensor counts as a separate contiguous array."""

from __future__ import annotations

import torch

from torchair.core.kernel_params import Int, Ints
from torchair.engine.registry import kernel


@kernel("AsStrided")
def as_strided(x, size: Ints, stride: Ints, storage_offset: Int):
    """Return a window with any strides over the elements in order."""
    return torch.as_strided(_array(x), size, stride, storage_offset)


@kernel("ViewCopy", pure=True)
def view_copy(
    dst, dst_size: Ints, dst_stride: Ints, dst_storage_offset: Int,
    src, src_size: Ints, src_stride: Ints, src_storage_offset: Int,
):  # fmt: skip
    """Write the window of `src` into the window of `dst`."""
    window = torch.as_strided(_array(src), src_size, src_stride, src_storage_offset)
    return torch.as_strided_scatter(_array(dst), window, dst_size, dst_stride, dst_storage_offset)


def _array(x):
    """Return the elements in order, from the start of their memory.

    Always a copy: the storage offset is not known while a tensor is traced (`slice_scatter` keeps the offset
    of its input).
    """
    return x.clone(memory_format=torch.contiguous_format)


@kernel("MatrixDiag")
def matrix_diag(x):
    """Return matrices of zeros with the last dim as their main diagonals."""
    return torch.diag_embed(x)


@kernel("MatrixDiagPart")
def matrix_diag_part(x):
    """Return the main diagonal of the last two dims."""
    return torch.diagonal(x, 0, -2, -1)
