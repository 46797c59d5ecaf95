"""Kernels that no converter here emits, on the samples that torch tests the matching ATen ops with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations as table

from tests.engine.kernels import check
from torchair import ge

aten = torch.ops.aten
f16, f32 = torch.float16, torch.float32

SAMPLES = 8

Case = tuple[Callable[..., Any], Any, list[torch.Tensor]]
"""What builds the op, what it must make, and of which tensors."""


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Case | None:
    if not x.ndim:
        return None
    make = lambda x: ge.FlattenV2(x, axis=start_dim, end_axis=end_dim)  # noqa: E731
    return make, torch.flatten(x, start_dim, end_dim), [x]


def _permute(x: Any, order: Any) -> Case:
    return lambda x: ge.Permute(x, order=list(order)), x.permute(order), [x]


def _unsqueeze(x: Any, dim: int) -> Case:
    return lambda x: ge.ExpandDims(x, dim), x.unsqueeze(dim), [x]


def _expand(x: Any, shape: Any) -> Case:
    return lambda x: ge.Expand(x, list(shape)), x.expand(shape), [x]


def _cat(parts: Any, dim: int = 0) -> Case | None:
    if len({part.dtype for part in parts}) > 1:
        return None
    join = lambda *parts: ge.Concat(dim, list(parts), N=len(parts))  # noqa: E731
    return join, torch.cat(parts, dim), list(parts)


def _std(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False, **other: Any) -> Case | None:
    if other or not isinstance(correction, int) or isinstance(dim, bool) or not x.ndim:
        return None
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    mean = x.mean(dims or None, keepdim=True)
    if x.numel() <= correction * mean.numel():
        return None  # torch warns; another test has it
    mean = mean.expand_as(x)
    attrs = {"dim": dims, "correction": correction, "keepdim": keepdim}
    expected = torch.std(x, dims or None, correction=correction, keepdim=keepdim)
    return lambda x, mean: ge.ReduceStdWithMean(x, mean, **attrs), expected, [x, mean]


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Case | None:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if not x.ndim:
        return None
    attrs = {"keep_dims": keepdim, "dtype": ge.DataType.DT_FLOAT}
    return lambda x: ge.ReduceMeanWithCast(x, dims, **attrs), x.mean(dims, keepdim, dtype=f32), [x]


def _reflect(x: Any, pad: Any, mode: str = "", value: Any = None) -> Case | None:
    if min(pad) < 0:
        return None  # a mirror only adds
    pairs = [[0, 0]] * (x.ndim - len(pad) // 2)
    pairs += [[pad[place], pad[place + 1]] for place in reversed(range(0, len(pad), 2))]
    expected = torch.nn.functional.pad(x, pad, "reflect")
    return lambda x: ge.MirrorPad(x, torch.tensor(pairs), mode="REFLECT"), expected, [x]


def _max_pool(x: Any, kernel_size: Any, **how: Any) -> Case | None:
    stride, padding, dilation = how.get("stride"), how.get("padding", 0), how.get("dilation", 1)
    vectors = [
        [1, *([part] * 2 if isinstance(part, int) else part), 1]
        for part in (kernel_size, kernel_size if stride in (None, ()) else stride, padding, dilation)
    ]
    if any(len(vector) != 4 for vector in vectors):
        return None
    ceil = bool(how.get("ceil_mode", False))
    y, places = aten.max_pool2d_with_indices(x, *(vector[1:3] for vector in vectors), ceil)
    dy = torch.ones_like(y)
    dx = aten.max_pool2d_with_indices_backward(dy, x, *(v[1:3] for v in vectors), ceil, places)
    named = dict(zip(("ksize", "strides", "pads", "dilation"), vectors, strict=True)) | {"ceil_mode": ceil}

    def make(x: Any, dy: Any) -> Any:
        y, mask = ge.MaxPoolWithArgmaxV1(x, **named)
        return y, ge.MaxPoolGradWithArgmaxV1(x, dy, mask, **named)

    return make, (y, dx), [x, dy]


def _batch_norm(x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, **how: Any) -> Any:
    if x.ndim < 3 or weight is None or x.numel() < 2 * x.shape[1]:
        return None
    epsilon, dims = how.get("eps", 1e-5), [dim for dim in range(x.ndim) if dim != 1]
    batch_variance, batch_mean = torch.var_mean(x.float(), dims, correction=0)
    dy = torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(x.dtype)
    expected = aten.native_batch_norm_backward(
        dy.float(), x.float(), weight.float(), None, None, batch_mean, (batch_variance + epsilon).rsqrt(),
        True, epsilon, [True] * 3,
    )  # fmt: skip

    def make(dy: Any, x: Any, weight: Any, mean: Any, variance: Any) -> Any:
        of = ge.BNTrainingUpdateGrad(dy, x, mean, variance, epsilon=epsilon)
        return ge.BNTrainingReduceGrad(dy, x, *of, weight, mean, variance, epsilon=epsilon), *of

    dx, *of = expected
    return make, (dx.to(x.dtype), *of), [dy, x, weight.float(), batch_mean, batch_variance]


def _group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Case | None:
    if weight is None or bias is None or weight.dtype != x.dtype or not x.numel():
        return None
    y = torch.nn.functional.group_norm(x, groups, weight, bias, eps)
    variance, mean = torch.var_mean(x.float().reshape(x.shape[0], groups, -1), 2, correction=0)
    make = lambda *given: ge.GroupNorm(*given, num_groups=groups, eps=eps)  # noqa: E731
    return make, (y, mean.to(x.dtype), variance.to(x.dtype)), [x, weight, bias]


def _prelu(x: Any, weight: Any) -> Case | None:
    if x.ndim < 2:
        return None
    shape = [1, -1, *[1] * (x.ndim - 2)]
    dy = torch.ones_like(x)
    dx, _ = aten._prelu_kernel_backward(dy, x, weight.reshape(shape))
    dw = torch.where(x > 0, 0, dy * x).sum_to_size(*weight.reshape(shape).shape).reshape(weight.shape)
    return lambda dy, x, w: ge.PReluGrad(dy, x, w), (dx, dw), [dy, x, weight]


OPS: dict[tuple[str, str], Callable[..., Any]] = {
    ("flatten", ""): _flatten,
    ("permute", ""): _permute,
    ("unsqueeze", ""): _unsqueeze,
    ("expand", ""): _expand,
    ("cat", ""): _cat,
    ("std", ""): _std,
    ("mean", ""): _mean,
    ("nn.functional.pad", "reflect"): _reflect,
    ("nn.functional.max_pool2d", ""): _max_pool,
    ("nn.functional.batch_norm", ""): _batch_norm,
    ("nn.functional.group_norm", ""): _group_norm,
    ("nn.functional.prelu", ""): _prelu,
}


def cases(name: tuple[str, str], dtype: torch.dtype) -> Iterator[Case]:
    """Of the samples that the IR op can be asked for."""
    (op,) = [op for op in table.op_db if (op.name, op.variant_test_name) == name]
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        made = OPS[name](sample.input, *sample.args, **sample.kwargs)
        if made is not None:
            yield made


def spread(found: list[Case]) -> list[Case]:
    """A few of them, from all over the table."""
    return found[:: max(1, len(found) // SAMPLES)]


@pytest.mark.full
@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("name", OPS, ids=[op for op, _ in OPS])
def test_kernel_equals_opinfo_samples(name: tuple[str, str], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    within = {"atol": 1e-4, "rtol": 1e-4} if dtype is f32 else {"atol": 5e-3, "rtol": 5e-3}
    for make, expected, tensors in spread(list(cases(name, dtype))):
        check(make, expected, *tensors, **within)
