"""Provide eager-only operators of `torch_npu`, composed of ATen ops with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from torchair.sim.plugin.formats import Format, npu_format_cast_

Ints = Sequence[int]


def _with_int32(values: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values, indices.to(torch.int32)


def _pad(input: torch.Tensor, paddings: Ints) -> torch.Tensor:
    pairs = [paddings[at : at + 2] for at in range(0, len(paddings), 2)]
    return F.pad(input, [number for pair in reversed(pairs) for number in pair])


def _slice(self: torch.Tensor, offsets: Ints, size: Ints) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
        self = self.narrow(dim, start, length if length >= 0 else self.shape[dim] - start)
    return self.contiguous()


def _one_hot(
    input: torch.Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> torch.Tensor:
    """Return one-hot vectors; a value that is not a class gets none. `num_classes` is the new dim."""
    is_it = input.unsqueeze(-1) == torch.arange(depth, device=input.device)
    made = torch.where(is_it, float(on_value), float(off_value)).to(torch.float32)
    return made if num_classes == -1 else made.movedim(-1, num_classes)


def _confused(x: torch.Tensor, perm: Ints, shape: Ints, transpose_first: bool) -> torch.Tensor:
    if transpose_first:
        return x.permute(*perm).reshape(shape)
    return x.reshape(shape).permute(*perm).contiguous()


def _deep_norm(
    x: torch.Tensor, gx: torch.Tensor, beta: torch.Tensor, gamma: torch.Tensor, alpha: float = 0.3,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    whole = (x * alpha + gx).float()
    dims = list(range(x.ndim - gamma.ndim, x.ndim))
    variance, mean = torch.var_mean(whole, dims, correction=0, keepdim=True)
    rstd = (variance + epsilon).rsqrt()
    return mean, rstd, ((whole - mean) * rstd * gamma + beta).to(x.dtype)


def _gemma_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = list(range(self.ndim - gamma.ndim, self.ndim))
    rstd = (self.float().square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return (self.float() * rstd * (1 + gamma.float())).to(self.dtype), rstd


def _permuted(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort tokens by expert, one copy per expert of a token, and return the new positions."""
    if padded_mode:
        raise NotImplementedError("npu_moe_token_permute does not support padded_mode, as on the hardware")
    order = indices.reshape(-1).argsort(stable=True)
    taken = order if not num_out_tokens else order[:num_out_tokens]
    count = 1 if indices.ndim == 1 else indices.shape[1]
    return tokens[taken // count], order.argsort().to(torch.int32)


def _unpermuted(
    permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None = None,
    padded_mode: bool = False, restore_shape: Ints | None = None,
) -> torch.Tensor:  # fmt: skip
    """Sum the weighted results of each token's experts in token order. Dropped tokens count as 0."""
    missing = sorted_indices.numel() - permuted_tokens.shape[0]
    rows = F.pad(permuted_tokens, (0, 0, 0, missing)) if missing > 0 else permuted_tokens
    rows = rows[sorted_indices.long()]
    if probs is None:
        return rows
    each = rows.view(-1, probs.shape[-1], rows.shape[-1])
    return (each * probs.unsqueeze(-1)).sum(1).to(permuted_tokens.dtype)


def _scaled_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1.0, fixed_triu_mask: bool = False
) -> torch.Tensor:
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return (x.float() * scale).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def _overlap(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Return the overlap of boxes given by corners, one row for each box of `gtboxes`. Mode 0 divides by the
    union, mode 1 by the area of the second box.
    """
    ours, theirs = bboxes.float().unsqueeze(0), gtboxes.float().unsqueeze(1)
    first, last = torch.maximum(ours[..., :2], theirs[..., :2]), torch.minimum(ours[..., 2:], theirs[..., 2:])
    both = (last - first).clamp(min=0).prod(-1)
    whole, other = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (ours, theirs))
    return (both / (other if mode else whole + other - both)).to(bboxes.dtype)


def _several_rotary(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor,
    head_size: int, *, mrope_section: Ints | None = None, rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Apply rotary embedding; with sections, a token has three positions, one for each part of a head."""
    if rotary_mode not in ("half", "interleave"):
        raise ValueError(f"npu_mrope: rotary_mode must be 'half' or 'interleave', got {rotary_mode!r}")
    cos, sin = cos_sin_cache[positions.long()].chunk(2, -1)
    if positions.ndim == 2 and mrope_section and any(mrope_section):
        cos, sin = (
            torch.cat([part[at] for at, part in enumerate(each.split(list(mrope_section), -1))], -1)
            for each in (cos, sin)
        )
    made = [_rotated(each, cos, sin, head_size, rotary_mode == "half") for each in (query, key)]
    return made[0], made[1]


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int, halves: bool
) -> torch.Tensor:
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    heads = x.unflatten(-1, (-1, head_size))
    turned, rest = heads[..., : 2 * cos.shape[-1]], heads[..., 2 * cos.shape[-1] :]
    one, two = turned.chunk(2, -1) if halves else (turned[..., ::2], turned[..., 1::2])
    parts = [one * cos - two * sin, two * cos + one * sin]
    made = torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)
    return torch.cat([made, rest], -1).to(x.dtype).flatten(-2)


def _gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    one, two = input.chunk(2, -1)
    return F.gelu(one, approximate=approximate) * two


def _group_norm_swish(
    input: torch.Tensor, num_groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5,
    swish_scale: float = 1.0,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    count = input.shape[1]
    made, mean, rstd = torch.native_group_norm(
        input.contiguous(), weight, bias, input.shape[0], count, input[0, 0].numel(), num_groups, eps
    )
    return made * (made * swish_scale).sigmoid(), mean, rstd


def _cross_entropy(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the loss and the log probabilities; z-loss is not supported, as on the hardware."""
    if lse_square_scale_for_zloss or return_zloss:
        raise NotImplementedError("npu_cross_entropy_loss does not support zloss, as on the hardware")
    loss = F.cross_entropy(
        input, target, weight, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    return loss, input.log_softmax(-1), input.new_empty(0), input.new_empty(0)


def _product(self: torch.Tensor, mat2: torch.Tensor, output_sizes: Ints) -> torch.Tensor:
    made = self @ mat2
    return made.reshape(list(output_sizes)) if len(output_sizes) else made


def _transposed_convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: Ints, output_padding: Ints,
    stride: Ints, dilation: Ints, groups: int,
) -> torch.Tensor:  # fmt: skip
    return F.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def _status(self: torch.Tensor) -> torch.Tensor:
    return torch.zeros(8, device=self.device)


_CONVOLVED = (
    "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups"
)
_NORMED = "Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05"
_NORM_OF_TWO = "Tensor x, Tensor gx, Tensor beta, Tensor gamma, float alpha=0.3, float epsilon=1e-06"
_CONFUSED = "Tensor self, int[] perm, int[] shape, bool transpose_first"
_HOT = "Tensor input, int num_classes=-1, int depth=1, Scalar on_value=1, Scalar off_value=0"
_MASKED = "Tensor x, Tensor mask, Scalar scale=1.0, bool fixed_triu_mask=False"
_RESTORED = (
    "Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False, "
    "int[]? restore_shape=None"
)
_COUNTED = (
    "Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache, int head_size, *, "
    "int[]? mrope_section=None, str rotary_mode='half'"
)
_SWISHED = "Tensor input, int num_groups, Tensor weight, Tensor bias, float eps=1e-05, float swish_scale=1.0"
_CLASSED = (
    "Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', int ignore_index=-100, "
    "float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0, bool return_zloss=False"
)
OPS: dict[str, Callable[..., Any]] = {
    f"npu_conv2d({_CONVOLVED}) -> Tensor": F.conv2d,
    f"npu_conv3d({_CONVOLVED}) -> Tensor": F.conv3d,
    "npu_conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] padding, int[] output_padding, "
    "int[] stride, int[] dilation, int groups) -> Tensor": _transposed_convolution,
    f"npu_convolution({_CONVOLVED}) -> Tensor": (
        lambda input, *rest: (F.conv3d if input.ndim == 5 else F.conv2d)(input, *rest)
    ),
    "npu_bmmV2(Tensor self, Tensor mat2, int[] output_sizes) -> Tensor": _product,
    "npu_silu(Tensor self) -> Tensor": F.silu,
    "npu_silu_(Tensor(a!) self) -> Tensor(a!)": lambda self: F.silu(self, inplace=True),
    "npu_mish(Tensor self) -> Tensor": F.mish,
    "npu_transpose(Tensor self, int[] perm, bool require_contiguous=True) -> Tensor": (
        lambda self, perm, require_contiguous=True: self.permute(*perm).contiguous()
    ),
    f"npu_confusion_transpose({_CONFUSED}) -> Tensor": _confused,
    "npu_reshape(Tensor self, int[] shape, bool can_refresh=False) -> Tensor": (
        lambda self, shape, can_refresh=False: self.reshape(shape).clone()
    ),
    "npu_slice(Tensor self, int[] offsets, int[] size) -> Tensor": _slice,
    "npu_pad(Tensor input, int[] paddings) -> Tensor": _pad,
    f"npu_one_hot({_HOT}) -> Tensor": _one_hot,
    "npu_max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)": (
        lambda self, dim, keepdim=False: _with_int32(*self.max(dim, keepdim))
    ),
    "npu_min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)": (
        lambda self, dim, keepdim=False: _with_int32(*self.min(dim, keepdim))
    ),
    "npu_sort_v2(Tensor self, int dim=-1, bool descending=False) -> Tensor": (
        lambda self, dim=-1, descending=False: self.sort(dim, descending)[0]
    ),
    f"npu_layer_norm_eval({_NORMED}) -> Tensor": F.layer_norm,
    f"npu_deep_norm({_NORM_OF_TWO}) -> (Tensor, Tensor, Tensor)": _deep_norm,
    "npu_gemma_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)": _gemma_norm,
    f"npu_scaled_masked_softmax({_MASKED}) -> Tensor": _scaled_softmax,
    f"npu_group_norm_swish({_SWISHED}) -> (Tensor, Tensor, Tensor)": _group_norm_swish,
    "npu_gelu_mul(Tensor input, *, str approximate='none') -> Tensor": _gelu_mul,
    f"npu_mrope({_COUNTED}) -> (Tensor, Tensor)": _several_rotary,
    "npu_iou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor": _overlap,
    "npu_ptiou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor": _overlap,
    "npu_broadcast(Tensor self, int[] size) -> Tensor": lambda self, size: self.expand(size).clone(),
    f"npu_cross_entropy_loss({_CLASSED}) -> (Tensor, Tensor, Tensor, Tensor)": _cross_entropy,
    "npu_softmax_cross_entropy_with_logits(Tensor self, Tensor labels) -> Tensor": (
        lambda self, labels: -(labels * self.log_softmax(-1)).sum(-1)
    ),
    "npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False) "
    "-> (Tensor, Tensor)": _permuted,
    f"npu_moe_token_unpermute({_RESTORED}) -> Tensor": _unpermuted,
    "npu_alloc_float_status(Tensor self) -> Tensor": _status,
    "npu_get_float_status(Tensor self) -> Tensor": _status,
    "npu_clear_float_status(Tensor self) -> Tensor": _status,
    "one_(Tensor(a!) self) -> Tensor(a!)": lambda self: self.fill_(1),
    "copy_memory_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)": (
        lambda self, src, non_blocking=False: self.copy_(src, non_blocking)
    ),
}
"""Functions by schema. The overflow status is always 0, because floats have infinities."""
NAMES = frozenset(schema.partition("(")[0].partition(".")[0] for schema in OPS)
_library = torch.library.Library("npu", "FRAGMENT")
for _schema, _call in OPS.items():
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _call, "CompositeImplicitAutograd")


def empty_with_format(
    size: Ints, *, dtype: torch.dtype | None = None, layout: torch.layout = torch.strided,
    device: Any = "npu", pin_memory: bool = False, acl_format: int = int(Format["ND"]),
) -> torch.Tensor:  # fmt: skip
    """Return an uninitialized tensor with a private layout of the hardware."""
    made = torch.empty(size, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)
    return npu_format_cast_(made, acl_format)
