"""Converters and kernels that rearrange, against eager, with and without symbolic sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

from tests.convert.harness import check

X = torch.randn(4, 6, 3)
ROWS = {
    "slice": (lambda x: x[:, 1:5], X),
    "slice_step": (lambda x: x[::2, 5:1:], X),
    "slice_negative": (lambda x: x[-2:, :-1, 1:], X),
    "slice_beyond": (lambda x: x[:100, 2:100], X),
    "slice_whole": (lambda x: x[:] + 1, X),
    "select": (lambda x: (x[1], x[:, -1], x.select(2, 0)), X),
    "squeeze": (
        lambda x: (x.squeeze(), x.squeeze(0), x.squeeze(1), x.squeeze((0, 2))),
        torch.randn(1, 4, 1, 3),
    ),
    "unsqueeze": (lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x[:, None, :, None]), X),
    "expand": (lambda x: (x.unsqueeze(1).expand(-1, 2, -1, -1), x.expand(2, 4, 6, 3)), X),
    "split": (lambda x: x.split(4, 1), X),
    "split_sizes": (lambda x: x.split([1, 2, 3], 1), X),
    "chunk": (lambda x: (*x.chunk(2, 0), *x.chunk(1, -1)), X),
    "unbind": (lambda x: x.unbind(-1), X),
    "cat": (lambda x: torch.cat([x, x + 1, x[:, :2]], 1), X),
    "cat_promotes": (lambda x, y: torch.cat([x, y], -1), X, torch.arange(72).reshape(4, 6, 3)),
    "cat_empty_vector": (lambda x: torch.cat([torch.empty(0), x], 1), X),
    "stack": (lambda x: (torch.stack([x, x * 2], 1), torch.stack([x, x], -1)), X),
    "repeat": (lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2)), X),
    "flip": (lambda x: x.flip(0, -1), X),
    "roll": (lambda x: (x.roll(2, 1), x.roll((1, -1), (0, 2)), x.roll(5)), X),
    "tril_triu": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), X),
    "transposed_input": (lambda x: x.transpose(0, 1)[1:3].flip(0).reshape(-1), X),
    "view_chain": (lambda x: x.view(24, 3).t()[1].unsqueeze(0), X),
    "scalar": (lambda x: (x.squeeze(), x.unsqueeze(0), x.expand(3)), torch.tensor(2.0)),
    "diagonal": (lambda x: (x.diagonal(), x.diagonal(1, 0, 2), x.diagonal(-2, 1, 0), x[0].diag()), X),
    "diag_embed": (lambda x: (x[0, 0].diag(), x.diag_embed()), X),
    "unfold": (lambda x: (x.unfold(1, 3, 2), x.transpose(0, 1).unfold(0, 2, 1)), X),
    "as_strided": (lambda x: (x + 0).as_strided((2, 3), (4, 1), 2), X),
    "as_strided_permuted": (lambda x: (x + 0).permute(1, 2, 0).as_strided((5, 2, 3), (3, 18, 1), 3), X),
    "as_strided_scatter": (
        lambda x, v: (x + 0).as_strided_scatter(v, (2, 3), (4, 1), 2),
        X,
        torch.randn(2, 3),
    ),
    "pad": (lambda x: (pad(x, (1, 2)), pad(x, (0, 0, 3, 1), value=2.5), pad(x, (-1, 1, 0, 0, 1, -2))), X),
    "pad_reflect": (lambda x: (pad(x, (2, 1), mode="reflect"), pad(x, (1, 1, 2, 0), mode="reflect")), X),
    "pad_replicate": (
        lambda x: (pad(x, (2, 1), mode="replicate"), pad(x, (1, 1, 2, 0), mode="replicate")),
        X,
    ),
    "pad_4d": (
        lambda x: (pad(x[None], (2, 0, 0, 0), mode="reflect"), pad(x[None], (0, 1, 1, 2), mode="replicate")),
        X,
    ),
    "pad_circular": (lambda x: pad(x, (1, 2), mode="circular"), X),
    "pad_grad": (
        lambda x: torch.ops.aten.reflection_pad2d_backward(pad(x, (1, 2, 3, 1)), x, [1, 2, 3, 1]),
        X,
    ),
    "pad_edge_grad": (lambda x: torch.ops.aten.replication_pad1d_backward(pad(x, (1, 2)), x, [1, 2]), X),
    "pad_symbol": (lambda x: pad(x, (0, 8 - x.shape[1], 0, 8 - x.shape[0])), torch.randn(5, 6)),
    "roll_symbol": (lambda x: (x.roll(x.shape[1] // 2, 1), x.roll(x.shape[0] - 1)), torch.randn(5, 6)),
    "zero_size": (lambda x: (x[:, 1:], torch.cat([x, torch.ones(2, 3)]), x.repeat(2, 2)), torch.empty(0, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_shape_op_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_shape_op_of_each_dtype_equals_eager(dtype: torch.dtype) -> None:
    check(lambda x: (x[1:, 0], torch.cat([x, x]), x.flip(0), x.repeat(2, 1)), torch.ones(3, 4).to(dtype))
