"""Operators, layers and optimisers of `torch_npu` that exist where the device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch import nn
from torch_npu.contrib import function, module

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[False, True, True, False]]).expand(3, 4)
GAMMA = torch.tensor([0.5, 1.0, 1.5, 2.0])
IMAGE, FILTER = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "transpose": (lambda x: torch_npu.npu_transpose(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1), (X,)),
    "transposed first": (
        lambda x: torch_npu.npu_confusion_transpose(x, [1, 0, 2], [3, 8], True),
        lambda x: x.permute(1, 0, 2).reshape(3, 8),
        (X,),
    ),
    "reshaped first": (
        lambda x: torch_npu.npu_confusion_transpose(x, [1, 0], [6, 4], False),
        lambda x: x.reshape(6, 4).t(),
        (X,),
    ),
    "reshape": (lambda x: torch_npu.npu_reshape(x, (6, 4)), lambda x: x.reshape(6, 4), (X,)),
    "slice": (lambda x: torch_npu.npu_slice(x, [0, 1, 0], [2, 2, 3]), lambda x: x[:, 1:3, :3], (X,)),
    "pad": (lambda x: torch_npu.npu_pad(x, [1, 0, 0, 2]), lambda x: F.pad(x, (0, 2, 1, 0)), (X[0],)),
    "max": (lambda x: torch_npu.npu_max(x, 1)[0], lambda x: x.max(1)[0], (X,)),
    "min": (lambda x: torch_npu.npu_min(x, dim=2, keepdim=True)[1].long(), lambda x: x.min(2, True)[1], (X,)),
    "sort": (lambda x: torch_npu.npu_sort_v2(x, -1, True), lambda x: x.sort(-1, True)[0], (X,)),
    "product": (lambda x: torch_npu.npu_bmmV2(x, x.mT, [18]), lambda x: (x @ x.mT).reshape(18), (X,)),
    "silu": (torch_npu.npu_silu, F.silu, (X,)),
    "silu here": (lambda x: torch_npu.npu_silu_(x.clone()), F.silu, (X,)),
    "mish": (torch_npu.npu_mish, F.mish, (X,)),
    "layer norm": (lambda x: torch_npu.npu_layer_norm_eval(x, (4,)), lambda x: F.layer_norm(x, (4,)), (X,)),
    "deep norm": (
        lambda x, g: torch_npu.npu_deep_norm(x, x, g, g)[2],
        lambda x, g: F.layer_norm(1.3 * x, (4,), g, g, 1e-6),
        (X, GAMMA),
    ),
    "gemma norm": (
        lambda x, g: torch_npu.npu_gemma_rms_norm(x, g)[0],
        lambda x, g: F.rms_norm(x, (4,), 1 + g, 1e-6),
        (X, GAMMA),
    ),
    "softmax": (
        lambda x, mask: torch_npu.npu_scaled_masked_softmax(x, mask, 0.5),
        lambda x, mask: (x * 0.5).masked_fill(mask, -10000.0).softmax(-1),
        (X, MASK),
    ),
    "cross entropy": (
        torch_npu.npu_softmax_cross_entropy_with_logits,
        lambda x, y: F.cross_entropy(x, y, reduction="none"),
        (X[0], X[1].softmax(-1)),
    ),
    "gelu of half": (torch_npu.npu_gelu_mul, lambda x: F.gelu(x[..., :2]) * x[..., 2:], (X,)),
    "group norm": (
        lambda x, w: torch_npu.npu_group_norm_swish(x, 1, w[:3], w[1:], swish_scale=2.0)[0],
        lambda x, w: (y := F.group_norm(x, 1, w[:3], w[1:])) * (2 * y).sigmoid(),
        (X, GAMMA),
    ),
    "loss": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, torch.tensor([1, -100, 3]).npu(), reduction="sum")[0],
        lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3]), reduction="sum"),
        (X[0],),
    ),
    "broadcast": (lambda x: torch_npu.npu_broadcast(x, (2, 3, 4)), lambda x: x.expand(2, 3, 4), (X[:1],)),
    "convolution of three": (
        lambda x, w: torch_npu.npu_convolution(x, w, None, [1] * 3, [0] * 3, [1] * 3, 1),
        F.conv3d,
        (IMAGE[None], FILTER[None, :1, :1].expand(1, 1, 1, 3, 3).contiguous()),
    ),
    "convolution": (
        lambda x, w: torch_npu.npu_conv2d(x, w, None, [2, 2], [1, 1], [1, 1], 1),
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        (IMAGE, FILTER),
    ),
    "convolution back": (
        lambda x, w: torch_npu.npu_conv_transpose2d(x, w, None, [1, 1], [1, 1], [2, 2], [1, 1], 1),
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1),
        (IMAGE, FILTER.transpose(0, 1).contiguous()),
    ),
    "shuffle": (
        lambda x, y: torch.cat(module.ChannelShuffle(8)(x, y), 1),
        lambda x, y: F.channel_shuffle(torch.cat([x, y], 1), 2),
        (X.mT.contiguous(), X.mT * 2),
    ),
    "transposed product": (function.matmul_transpose, lambda x, y: x @ y.mT, (X, X)),
    "roll": (lambda x: function.roll(x, 1, 2), lambda x: x.roll(1, 2), (X,)),
    "put": (
        lambda x: function.npu_fast_condition_index_put(x, x > 0, 7.0),
        lambda x: x.masked_fill(x > 0, 7),
        (X,),
    ),
    "probabilities": (
        lambda x: function.fuse_add_softmax_dropout(False, nn.Identity(), x, x, 0.5),
        lambda x: (1.5 * x).softmax(-1),
        (X,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_is_what_aten_makes_of_it(case: str) -> None:
    ours, theirs, given = CASES[case]
    given = tuple(each.clone().requires_grad_(each.is_floating_point()) for each in given)
    moved = tuple(each.detach().npu().requires_grad_(each.requires_grad) for each in given)
    got, want = ours(*moved), theirs(*given)
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-4)
    if want.requires_grad:
        want.sum().backward()
        got.sum().backward()
        for mine, other in zip(moved, given, strict=True):
            if other.grad is not None:
                torch.testing.assert_close(mine.grad.cpu(), other.grad, atol=1e-5, rtol=1e-4)


def test_boxes() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [10, 10, 20, 20], [32, 32, 38, 42]]).npu()
    others = torch.tensor([[0.0, 0, 10, 20], [10, 10, 20, 20]]).npu()
    assert torch_npu.npu_iou(boxes, others).tolist() == [[0.5, 0, 0], [0, 1, 0]]
    assert torch_npu.npu_ptiou(boxes[:1], others[:1], 1).tolist() == [[0.5]]


@pytest.mark.parametrize("halves", [True, False])
def test_three_positions(halves: bool) -> None:
    """As one position each where the three are the same; complex numbers say what turning is."""
    cache, x, mode = torch.randn(9, 6), torch.randn(4, 16), "half" if halves else "interleave"
    positions = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 1, 1]])
    places = torch.tensor([0, 1, 2])  # one frequency of each kind of position
    by = torch.complex(cache[:, :3], cache[:, 3:])[positions, places[:, None]].t().unsqueeze(1)
    heads = x.unflatten(1, (2, 8))
    dims = [0, 3, 1, 4, 2, 5] if halves else list(range(6))
    turned = torch.view_as_complex(heads[..., dims].unflatten(-1, (3, 2)).contiguous()) * by
    want = heads.clone()
    want[..., dims] = torch.view_as_real(turned).flatten(-2)
    query, key = torch_npu.npu_mrope(
        positions.npu(), x.npu(), x[:, :8].npu(), cache.npu(), 8, mrope_section=[1, 1, 1], rotary_mode=mode
    )
    torch.testing.assert_close(query.cpu(), want.flatten(1))
    torch.testing.assert_close(key.cpu(), want[:, 0])
    once = torch_npu.npu_mrope(positions[0].npu(), x.npu(), x.npu(), cache.npu(), 8, rotary_mode=mode)
    same = torch_npu.npu_mrope(
        positions[:1].expand(3, 4).npu(), x.npu(), x.npu(), cache.npu(), 8, mrope_section=[1, 1, 1],
        rotary_mode=mode,
    )  # fmt: skip
    torch.testing.assert_close(once[1], same[1])


def test_tokens_go_to_experts_and_back() -> None:
    tokens, experts = (
        torch.randn(5, 8, requires_grad=True),
        torch.tensor([[1, 0], [2, 1], [0, 2], [1, 2], [0, 1]]),
    )
    weights, moved = torch.rand(5, 2), tokens.detach().npu().requires_grad_()
    permuted, places = torch_npu.npu_moe_token_permute(moved, experts.npu())
    assert torch.equal(permuted.cpu(), tokens[experts.flatten().argsort(stable=True) // 2])
    assert places.dtype == torch.int32
    got = torch_npu.npu_moe_token_unpermute(permuted * 2, places, weights.npu())
    want = 2 * tokens * weights.sum(1, keepdim=True)
    torch.testing.assert_close(got.cpu(), want)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(moved.grad.cpu(), tokens.grad)
    fewer, places = torch_npu.npu_moe_token_permute(moved, experts.npu(), 7)
    assert fewer.shape == (7, 8)
    torch_npu.npu_moe_token_unpermute(fewer, places, weights.npu())


def test_no_class_and_memory() -> None:
    made = torch_npu.npu_one_hot(torch.tensor([5, 1]).npu(), depth=3)
    assert made.tolist() == [[0, 0, 0], [0, 1, 0]]
    made = torch_npu.empty_with_format((2, 3), dtype=torch.half, device="npu", acl_format=29)
    assert torch_npu.get_npu_format(made) == 29
    assert torch_npu.one_(made).sum() == 6
    assert torch_npu.copy_memory_(made, torch.zeros(2, 3).half().npu()).sum() == 0
    assert torch_npu.npu_get_float_status(torch_npu.npu_alloc_float_status(made)).tolist() == [0] * 8


def test_batches_are_there_before_they_are_asked_for() -> None:
    batches = [(torch.full((2,), float(number)), torch.tensor([number])) for number in range(3)]
    fetched, seen = module.Prefetcher(batches), []
    x, y = fetched.next()
    while x is not None:
        assert x.is_npu
        seen.append((x[0].item(), y.item()))
        x, y = fetched.next()
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_tensors_in_one() -> None:
    tensors = [torch.full((2, 2), 1.0).npu(), torch.full((3,), 2.0).npu()]
    whole = torch_npu.utils.npu_combine_tensors(tensors)
    assert whole.tolist() == [1.0] * 4 + [2.0] * 3
    whole.mul_(2)
    assert tensors[1].tolist() == [4.0] * 3
    assert torch_npu.utils.is_combined_tensor_valid(whole, tensors)
    assert not torch_npu.utils.is_combined_tensor_valid(whole, tensors[::-1])
    assert torch_npu.utils.get_part_combined_tensor(whole, 4, 2).tolist() == [4.0] * 2
    with pytest.raises(RuntimeError, match="exceeds the 7 elements"):
        torch_npu.utils.get_part_combined_tensor(whole, 4, 4)


def test_what_overflows() -> None:
    grad = torch.ones(2, device="npu")
    assert not torch_npu.npu.utils.npu_check_overflow(grad)
    assert torch_npu.npu.utils.npu_check_overflow(grad / 0)
    assert torch_npu.npu.utils.npu_check_overflow(float("nan"))
    assert not torch.npu.get_npu_overflow_flag()
    assert torch.distributed.is_hccl_available()


def test_quantised_layers() -> None:
    weight, x = torch.randint(-5, 5, (4, 8), dtype=torch.int8), torch.randint(-5, 5, (3, 8), dtype=torch.int8)
    layer = module.LinearA8W8Quant(8, 4, bias=False, output_dtype=torch.float16).npu()
    layer.weight.data, layer.scale.data = weight.npu(), torch.full((4,), 0.5).npu()
    assert torch.equal(layer(x.npu()).cpu(), (x.int() @ weight.int().t() * 0.5).half())
    wide = module.LinearWeightQuant(8, 4, bias=False).npu()
    wide.weight.data = weight.npu()
    wide.antiquant_scale.data.fill_(0.5)
    torch.testing.assert_close(wide(x.half().npu()).cpu().float(), x.float() @ (weight.float() * 0.5).t())


def test_smooth_targets_and_optimisers() -> None:
    logits, target = torch.randn(3, 5), torch.tensor([0, 4, 2])
    smooth = F.one_hot(target, 5) * (0.9 - 0.025) + 0.025
    got = module.LabelSmoothingCrossEntropy(5, 0.1)(logits.npu(), target.npu())
    torch.testing.assert_close(got.cpu(), F.cross_entropy(logits, smooth))
    for name in torch_npu.optim.__all__:
        parameter = nn.Parameter(torch.ones(2, device="npu"))
        parameter.grad = torch.ones_like(parameter)
        optimizer = getattr(torch_npu.optim, name)([parameter], lr=0.1)
        torch.testing.assert_close(optimizer.clip_grad_norm_fused_(1.0).item(), 2**0.5)
        assert (parameter.grad < 1).all()
        optimizer.step()
        assert (parameter < 1).all()
