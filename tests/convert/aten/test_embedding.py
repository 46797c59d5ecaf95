"""Tables of rows against eager, with and without symbolic sizes; plain look-ups are in `test_index`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.convert.harness import check

aten = torch.ops.aten
W = torch.randn(7, 4)
I = torch.tensor([0, 4, 2, 2, 6, 1])  # noqa: E741 - an index
BAGS = torch.tensor([0, 2, 2])
SHARES = torch.rand(6)


def gradients(mode: int, scaled: bool) -> object:
    """The gradients of a bag of rows, from what its forward call returned."""

    def run(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        y, bag, size, best = aten._embedding_bag(w, i, o, False, mode, False, s if scaled else None, False, 4)
        rest = (w.shape[0], False, mode)
        made = [
            aten._embedding_bag_dense_backward(y, i, bag, size, best, *rest, s if scaled else None, 4),
            aten._embedding_bag_backward(y, i, o, bag, size, best, *rest, False, s if scaled else None, 4),
        ]
        if scaled:
            made.append(aten._embedding_bag_per_sample_weights_backward(y, w, i, o, bag, mode, 4))
        return made

    return run


ROWS = {
    "renorm": (lambda w, i: [aten.embedding_renorm(w, i, 1.0, p) for p in (1.0, 2.0, 3.0)], W, I.view(2, 3)),
    "bag_modes": (
        lambda w, i, o: [F.embedding_bag(i, w, o, mode=mode) for mode in ("sum", "mean", "max")], W, I, BAGS,
    ),
    "bag_steps": (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        W.t().contiguous().t(),
        I.repeat_interleave(2)[::2],
        BAGS.repeat_interleave(2)[::2],
        SHARES.repeat_interleave(2)[::2],
    ),
    "bag_shares": (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s), W, I, BAGS, SHARES,
    ),
    "bag_padding": (
        lambda w, i, o: aten._embedding_bag_forward_only(w, i, o, padding_idx=2)[0], W, I, BAGS,
    ),
    "bag_last_offset": (
        lambda w, i, o: F.embedding_bag(i, w, o, include_last_offset=True, mode="sum"), W, I,
        torch.tensor([0, 2, 6]),
    ),
}  # fmt: skip
GRADIENTS = {"sum": gradients(0, False), "shares": gradients(0, True), "mean": gradients(1, False)}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS)
def test_embedding_equals_eager(row: str, dynamic: bool) -> None:
    fn, *args = ROWS[row]
    check(fn, *args, dynamic=dynamic)


@pytest.mark.parametrize("row", GRADIENTS)
def test_embedding_gradient_equals_eager(row: str) -> None:
    check(GRADIENTS[row], W, I, BAGS, SHARES)


def test_gradient_of_maxima() -> None:
    check(gradients(2, False), W, I, torch.tensor([0, 2, 4]), SHARES)
