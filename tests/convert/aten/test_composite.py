"""Ops that are taken apart here: each row is called whole, and equals torch's own kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.convert.harness import check
from torchair.convert.aten.composite import PARTS
from torchair.convert.base.report import ConversionReport

aten = torch.ops.aten
f32 = torch.float32


def rand(*shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def small(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-9, 9, shape, generator=generator, dtype=torch.int8)


X = rand(3, 4)
MASK = rand(2, 3, 4) > 0.3
MASK[0, 1] = True  # a row with nothing left
PLAIN = {"dtype": None, "layout": None, "device": torch.device("cpu"), "pin_memory": False}
TENSORS: dict[str, tuple[Any, ...]] = {
    "logit_backward.default": (X, X.sigmoid(), 1e-3),
    "smooth_l1_loss_backward.default": (X, X * 3, X, 1, 0.5),
    "_int_mm.default": (small(17, 16), small(16, 24)),
    "_weight_int8pack_mm.default": (rand(3, 32, dtype=torch.bfloat16), small(16, 32), rand(16).bfloat16()),
    "fake_quantize_per_tensor_affine_cachemask.default": (X * 9, 0.11, 3, -128, 127),
    "fake_quantize_per_channel_affine_cachemask.default": (
        X * 9, torch.tensor([0.1, 0.2, 0.05, 0.3]), torch.tensor([0, 3, -2, 5], dtype=torch.int32), 1, -8, 7,
    ),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": (
        X * 9, torch.tensor([0.1]), torch.tensor([4], dtype=torch.int32), torch.tensor([1]), -8, 7,
    ),
    "_masked_softmax.default": (rand(2, 3, 4), MASK, 2, 2),
    "_masked_softmax_backward.default": (rand(2, 3, 4), rand(2, 3, 4).softmax(-1), MASK, 2),
    "_jagged_to_padded_dense_forward.default": (rand(6, 2), [torch.tensor([0, 1, 1, 6])], [4], 1.5),
    "_padded_dense_to_jagged_forward.default": (rand(3, 4, 2), [torch.tensor([0, 1, 1, 5])], 5),
    "conv_tbc.default": (rand(7, 2, 3), rand(3, 3, 5), rand(5), 1),
    "_weight_norm_interface_backward.default": (X, rand(3, 4) + 1, rand(3, 1), rand(3, 1).abs() + 1, 0),
    "_aminmax.default": (X,),
    "_aminmax.dim": (X, 1, True),
    "_add_relu.Tensor": (X, rand(3, 4)),
    "_is_any_true.default": (X > 0,),
    "_is_all_true.default": (X > 0,),
}  # fmt: skip
NUMBERS: dict[str, tuple[Any, ...]] = {
    "range.default": (1, 5),
    "range.step": (0.5, 2.5, 0.25),
    "hamming_window.default": (7,),
    "hamming_window.periodic": (7, False),
    "hamming_window.periodic_alpha": (6, True, 0.6),
    "hamming_window.periodic_alpha_beta": (6, True, 0.6, 0.3),
    "blackman_window.default": (7,),
    "blackman_window.periodic": (6, False),
    "bartlett_window.default": (7,),
    "bartlett_window.periodic": (7, False),
    "kaiser_window.default": (7,),
    "kaiser_window.periodic": (7, False),
    "kaiser_window.beta": (7, True, 5.0),
}
# torch cannot trace these with symbols.
STATIC = (
    "_aminmax.default", "_aminmax.dim", "_masked_softmax_backward.default", "_masked_softmax.default",
    "fake_quantize_per_tensor_affine_cachemask.default", "fake_quantize_per_channel_affine_cachemask.default",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
)  # fmt: skip
# Their kernels exist on a GPU only.
ELSEWHERE = {"mm.dtype", "bmm.dtype", "_thnn_fused_lstm_cell.default"}


def overload(name: str) -> Any:
    packet, variant = name.split(".")
    found = getattr(getattr(aten, packet, None), variant, None)
    if found is None:
        pytest.skip(f"this torch has no aten.{name}")
    return found


def test_every_row_is_tried() -> None:
    assert set(PARTS) == {*TENSORS, *NUMBERS, *ELSEWHERE}


def taken(report: ConversionReport) -> set[str]:
    """The ops that were taken apart."""
    return {reason.op for reason in report.decomposed}


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [(name, dynamic) for name in TENSORS for dynamic in (False, True) if not (dynamic and name in STATIC)],
)
def test_composite_op_on_tensors_equals_eager(name: str, dynamic: bool) -> None:
    op, args = overload(name), TENSORS[name]
    leaves, form = tree_flatten(args)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        left = iter(given)
        return op(*tree_unflatten([next(left) if isinstance(x, torch.Tensor) else x for x in leaves], form))

    assert f"aten.{name}" in taken(check(call, *tensors, dynamic=dynamic))


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("name", NUMBERS)
def test_composite_op_on_numbers_equals_eager(name: str, dtype: torch.dtype | None) -> None:
    op = overload(name)
    report = check(lambda x: x * op(*NUMBERS[name], **(PLAIN | {"dtype": dtype})), torch.full((1,), 2.0))
    assert f"aten.{name}" in taken(report)


def test_products_that_widen() -> None:
    a, b = rand(2, 3, 4, dtype=torch.bfloat16), rand(2, 4, 5, dtype=torch.bfloat16)
    torch.testing.assert_close(PARTS["bmm.dtype"](a, b, f32), a.float() @ b.float())
    torch.testing.assert_close(PARTS["mm.dtype"](a[0], b[0], f32), a[0].float() @ b[0].float())


def test_a_step_of_an_lstm() -> None:
    cell = torch.nn.LSTMCell(3, 4)
    x, hidden, state = rand(2, 3), rand(2, 4), rand(2, 4)
    with torch.no_grad():
        want = cell(x, (hidden, state))
        gates = x @ cell.weight_ih.t(), hidden @ cell.weight_hh.t()
        got = PARTS["_thnn_fused_lstm_cell.default"](*gates, state, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(got[:2], want)
