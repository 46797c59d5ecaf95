"""Implement the ops of `torch.nn.SyncBatchNorm`. Sums are over all dims except the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _others(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _along(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape one number per channel so that it broadcasts to `like`."""
    return _wide(x).view(1, -1, *[1] * (like.ndim - 2))


def batch_norm_stats(input: torch.Tensor, eps: float) -> Tensors:
    """Return the means and the inverse standard deviations."""
    variance, mean = torch.var_mean(_wide(input), _others(input), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, momentum: float, eps: float, counts: torch.Tensor,
) -> Tensors:  # fmt: skip
    """Combine the statistics of all processes."""
    weight = _wide(counts).view(-1, 1)
    count = weight.sum()
    whole = (mean * weight).sum(0) / count
    variance = ((invstd.square().reciprocal() - eps + (mean - whole).square()) * weight).sum(0) / count
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), momentum)
    return whole, (variance + eps).rsqrt()


def batch_norm_elemt(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor,
    invstd: torch.Tensor, eps: float,
) -> torch.Tensor:  # fmt: skip
    """Return the normalized input."""
    made = (_wide(input) - _along(mean, input)) * _along(invstd, input)
    made = made if weight is None else made * _along(weight, input)
    return (made if bias is None else made + _along(bias, input)).to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor,
    weight: torch.Tensor | None, input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Return the gradient sums that all processes exchange, and the gradients of weight and bias."""
    dims, grad = _others(input), _wide(grad_out)
    total = grad.sum(dims)
    of_deviation = (grad * (_wide(input) - _along(mean, input))).sum(dims)
    of_weight = (of_deviation * invstd).to(mean.dtype if weight is None else weight.dtype)
    of_bias = total.to(mean.dtype if weight is None else weight.dtype)
    return total, of_deviation, of_weight if weight_g else None, of_bias if bias_g else None


def batch_norm_backward_elemt(
    grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor,
    weight: torch.Tensor | None, sum_dy: torch.Tensor, sum_dy_xmu: torch.Tensor, count: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the input."""
    number = _wide(count).sum()
    deviation = _wide(input) - _along(mean, input)
    shared = _along(sum_dy, input) + deviation * _along(invstd.square() * sum_dy_xmu, input)
    scale = invstd if weight is None else invstd * weight
    return ((_wide(grad_out) - shared / number) * _along(scale, input)).to(input.dtype)


PARTS: tuple[Callable[..., Any], ...] = (
    batch_norm_stats, batch_norm_gather_stats_with_counts, batch_norm_elemt, batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)  # fmt: skip
_libraries: list[torch.library.Library] = []


def define_batch_norm() -> None:
    """Register these ops for tensors of the device."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for part in PARTS:
        library.impl(part.__name__, part, "PrivateUse1")
