"""Token filters of the npu library, against sets made in Python."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import MODES, agrees, compiles, rand

npu = torch.ops.npu
LOGITS, K, P = rand(4, 20) * 3, torch.tensor([5, 20, 1, 8]), torch.tensor([0.7, 0.5, 0.9, 1.0])


def filtered(logits, p, k):
    made = torch.full_like(logits, float("-inf"))
    for row in range(len(logits)):
        best = sorted(range(logits.shape[1]), key=lambda i: -logits[row, i].item())[: k[row]]
        chances = logits[row, best].softmax(0)
        # A token stays while those before it have less than p.
        kept = [i for n, i in enumerate(best) if n == 0 or chances[:n].sum() < p[row]]
        made[row, kept] = logits[row, kept]
    return made


def test_token_filter_equals_sets():
    agrees(lambda *args: npu.npu_top_k_top_p(*args), (LOGITS, P, K), filtered)


def test_the_largest_stays_whatever_p_is():
    got = npu.npu_top_k_top_p(LOGITS, torch.zeros(4), K)
    assert torch.equal(got.isfinite().sum(1), torch.ones(4, dtype=torch.int64))
    assert torch.equal(got.argmax(1), LOGITS.argmax(1))


def test_samples_follow_the_filtered_chances():
    """Exponential noise: each token as often as its probability says."""
    count = 4000
    logits = LOGITS[:1].expand(count, -1)
    noise = torch.empty(count, 20).exponential_(generator=torch.Generator().manual_seed(0))
    chosen, kept = npu.npu_top_k_top_p_sample(
        logits, K[:1].expand(count), P[:1].expand(count), q=noise, is_need_logits=True
    )
    often = torch.bincount(chosen, minlength=20) / count
    assert (often - kept[0].softmax(0)).abs().max() < 0.03
    assert not often[kept[0].isinf()].any()


def test_without_noise_the_best_token():
    chosen, kept = npu.npu_top_k_top_p_sample(LOGITS, K, P)
    assert torch.equal(chosen, LOGITS.argmax(-1))
    assert kept.shape == (0,)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_sampling_ops_compile_in_both_modes(mode, dynamic):
    compiles(lambda *args: npu.npu_top_k_top_p_sample(*args), (LOGITS, K, P), mode, dynamic)
