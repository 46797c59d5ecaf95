"""Kernels of ops that no converter here emits: graphs of other producers hold them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.engine.kernels import CPU, check, run, strided
from tests.support.slow import STATIC_FIRST
from torchair import ge
from torchair.convert.base.emitted_ops import emitted_by_target
from torchair.core.errors import UnsupportedOp
from torchair.engine.evaluate import evaluate
from torchair.engine.registry import has_kernel
from torchair.ge.graph import Graph

aten = torch.ops.aten
f16, bf16, f32, i32 = torch.float16, torch.bfloat16, torch.float32, torch.int32
WITHIN = {f32: {}, f16: {"atol": 2e-3, "rtol": 2e-3}, bf16: {"atol": 2e-2, "rtol": 2e-2}}


def rand(*shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    """The same numbers for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X = rand(3, 4, 5, 6)
MATRIX = rand(5, 7)
PADS = torch.tensor([[0, 0], [0, 0], [1, 2], [3, 0]])


# Ops that are one torch call: the op, its meaning, its tensors.
ROWS: dict[str, tuple[Any, Any, list[torch.Tensor]]] = {
    "Expand": (lambda x: ge.Expand(x, [2, 5, 7]), lambda x: x.expand(2, 5, 7), [MATRIX]),
    "Expand keeps": (lambda x: ge.Expand(x, [2, -1, -1]), lambda x: x.expand(2, -1, -1), [MATRIX]),
    "ExpandD": (lambda x: ge.ExpandD(x, shape=[2, 5, 7]), lambda x: x.expand(2, 5, 7), [MATRIX]),
    "ExpandDims": (lambda x: ge.ExpandDims(x, -2), lambda x: x.unsqueeze(-2), [MATRIX]),
    "FlattenV2": (lambda x: ge.FlattenV2(x, axis=1, end_axis=-2), lambda x: x.flatten(1, 2), [X]),
    "Flatten": (lambda x: ge.Flatten(x, axis=2), lambda x: x.reshape(12, 30), [X]),
    "Permute": (lambda x: ge.Permute(x, order=[2, 0, 3, 1]), lambda x: x.permute(2, 0, 3, 1), [X]),
    "Slice": (lambda x: ge.Slice(x, [1, 2], [3, -1]), lambda x: x[1:4, 2:], [MATRIX]),
    "SliceD": (lambda x: ge.SliceD(x, offsets=[1, 2], size=[3, -1]), lambda x: x[1:4, 2:], [MATRIX]),
    "Split": (lambda x: ge.Split(1, x, num_split=2, outputs=2), lambda x: x.split(2, 1), [X]),
    "SplitD": (lambda x: ge.SplitD(x, split_dim=1, num_split=2, outputs=2), lambda x: x.split(2, 1), [X]),
    "SplitVD": (
        lambda x: ge.SplitVD(x, size_splits=[1, -1], split_dim=0, num_split=2, outputs=2),
        lambda x: (x[:1], x[1:]),
        [MATRIX],
    ),
    "UnsqueezeV3": (
        lambda x: ge.UnsqueezeV3(x, [-1, 0]), lambda x: x.unsqueeze(0).unsqueeze(-1), [MATRIX]
    ),
    "SqueezeV3": (lambda x: ge.SqueezeV3(x, [1]), lambda x: x.squeeze(1), [rand(5, 1, 7)]),
    "TransposeD": (lambda x: ge.TransposeD(x, perm=[1, 0]), lambda x: x.t(), [MATRIX]),
    "TileD": (lambda x: ge.TileD(x, multiples=[2, 1]), lambda x: x.repeat(2, 1), [MATRIX]),
    "ReverseV2D": (lambda x: ge.ReverseV2D(x, axis=[1]), lambda x: x.flip(1), [MATRIX]),
    "MirrorPad": (
        lambda x: ge.MirrorPad(x, PADS, mode="REFLECT"), lambda x: F.pad(x, (3, 0, 1, 2), "reflect"), [X]
    ),
    "MirrorPad with the border": (
        lambda x: ge.MirrorPad(x, [0, 0, 2, 3], mode="SYMMETRIC"),
        lambda x: x[:, [1, 0, 0, 1, 2, 3, 4, 5, 6, 6, 5, 4]],
        [MATRIX],
    ),
    "Pad": (lambda x: ge.Pad(x, PADS), lambda x: F.pad(x, (3, 0, 1, 2)), [X]),
    "PadV2": (lambda x: ge.PadV2(x, PADS, 2.5), lambda x: F.pad(x, (3, 0, 1, 2), value=2.5), [X]),
    "ReduceMeanWithCast": (
        lambda x: ge.ReduceMeanWithCast(x, [0, 2], dtype=ge.DataType.DT_FLOAT),
        lambda x: x.mean((0, 2), dtype=f32),
        [rand(3, 4, 5, dtype=f16)],
    ),
    "ReduceMeanWithCast without dtype": (
        lambda x: ge.ReduceMeanWithCast(x, [1], keep_dims=True), lambda x: x.mean(1, keepdim=True), [MATRIX]
    ),
    "ReduceSumD": (lambda x: ge.ReduceSumD(x, axes=[0]), lambda x: x.sum(0), [MATRIX]),
    "ReduceMeanD": (lambda x: ge.ReduceMeanD(x, axes=[0]), lambda x: x.mean(0), [MATRIX]),
    "CumsumD": (lambda x: ge.CumsumD(x, axis=1), lambda x: x.cumsum(1), [MATRIX]),
    "ArgMaxD": (lambda x: ge.ArgMaxD(x, dimension=1), lambda x: x.argmax(1), [MATRIX]),
    "Size": (
        lambda x: ge.Fill([2], ge.Size(x, dtype=9)), lambda x: torch.full((2,), x.numel()), [MATRIX]
    ),
    "GatherNd": (
        lambda x, i: ge.GatherNd(x, i),
        lambda x, i: x[i[:, 0].long(), i[:, 1].long()],
        [X, torch.tensor([[0, 3], [2, 1]], dtype=i32)],
    ),
    "GatherV2D": (
        lambda x, i: ge.GatherV2D(x, i, axis=1), lambda x, i: x[:, i.long()],
        [MATRIX, torch.tensor([6, 0], dtype=i32)],
    ),
    "TensorScatterSub": (
        lambda x, i, u: ge.TensorScatterSub(x, i, u),
        lambda x, i, u: x.index_put((i[:, 0],), -u, accumulate=True),
        [MATRIX, torch.tensor([[1], [1]]), rand(2, 7)],
    ),
    "MatrixDiag": (lambda x: ge.MatrixDiag(x), torch.diag_embed, [MATRIX]),
    "SquaredDifference": (lambda x, y: ge.SquaredDifference(x, y), lambda x, y: (x - y) ** 2, [X, rand(6)]),
    "Xdivy": (lambda x, y: ge.Xdivy(x, y), lambda x, y: x / y, [MATRIX, rand(7)]),
    "SqrtGrad": (
        lambda y, dy: ge.SqrtGrad(y, dy), lambda y, dy: dy / (2 * y), [MATRIX.abs() + 1, rand(5, 7)]
    ),
    "RsqrtGrad": (
        lambda y, dy: ge.RsqrtGrad(y, dy), lambda y, dy: -dy * y**3 / 2, [MATRIX.abs() + 1, rand(5, 7)]
    ),
    "Relu6Grad": (
        lambda dy, x: ge.Relu6Grad(dy, x),
        lambda dy, x: dy * ((x > 0) & (x < 6)),
        [rand(5, 7), MATRIX * 4],
    ),
    "ThresholdV2D": (
        lambda x: ge.ThresholdV2D(x, threshold=0.5, value=-1.0), lambda x: F.threshold(x, 0.5, -1.0), [X]
    ),
    "SmoothL1LossV2": (
        lambda x, y: ge.SmoothL1LossV2(x, y, sigma=0.5),
        lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
        [MATRIX, rand(5, 7) + 0.3],
    ),
    "PReluGrad": (
        lambda dy, x, w: ge.PReluGrad(dy, x, w),
        lambda dy, x, w: aten._prelu_kernel_backward(dy, x, w.reshape(1, -1, 1, 1))[:1]
        + (torch.where(x > 0, 0, dy * x).sum((0, 2, 3)),),
        [rand(3, 4, 5, 6), X + 0.5, rand(4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ROWS)
def test_one_torch_call(name: str, dynamic: bool) -> None:
    make, meaning, tensors = ROWS[name]
    expected = meaning(*tensors)
    check(make, expected, *tensors, dynamic=dynamic)
    check(make, expected, *(strided(x) if x.is_floating_point() else x for x in tensors))


HALF, TRUE = torch.rand(5, 7) * 0.8 + 0.1, MATRIX > 0
IDS = torch.tensor([0, 2, 0, 1, 2], dtype=i32)
AT = torch.tensor([[1], [3]])
# Ops whose inputs are all tensors, and which have these attributes: the op, attributes, its meaning, tensors.
PLAIN: list[tuple[str, dict[str, Any], Any, list[torch.Tensor]]] = [
    ("AddV2", {}, torch.add, [X, rand(6)]),
    ("Inv", {}, torch.reciprocal, [HALF]),
    ("InvGrad", {}, lambda y, dy: -dy * y**2, [HALF, MATRIX]),
    ("ReciprocalGrad", {}, lambda y, dy: -dy * y**2, [HALF, MATRIX]),
    ("MulNoNan", {}, lambda x, y: torch.where(y == 0, 0, x * y), [MATRIX / 0, TRUE.float()]),
    ("Xlog1py", {}, torch.special.xlog1py, [MATRIX, HALF]),
    ("FusedMulAdd", {}, lambda a, b, c: a * b + c, [MATRIX, HALF, rand(7)]),
    ("FusedMulAddAdd", {}, lambda a, b, c, d: a * b + c + d, [MATRIX, HALF, rand(7), rand(5, 1)]),
    ("IsPosInf", {}, torch.isposinf, [MATRIX / 0]),
    ("IsNegInf", {}, torch.isneginf, [MATRIX / 0]),
    ("CastLike", {}, lambda x, y: x.half(), [MATRIX, rand(2).half()]),
    ("StopGradient", {}, torch.clone, [MATRIX]),
    ("GuaranteeConst", {}, torch.clone, [MATRIX]),
    ("Snapshot", {}, torch.clone, [MATRIX]),
    ("PreventGradient", {"message": "no"}, torch.clone, [MATRIX]),
    ("Fills", {"value": 1.5}, lambda x: torch.full_like(x, 1.5), [MATRIX]),
    ("ReduceMaxD", {"axes": [0]}, lambda x: x.amax(0), [MATRIX]),
    ("ReduceMinD", {"axes": [1], "keep_dims": True}, lambda x: x.amin(1, keepdim=True), [MATRIX]),
    ("ReduceAllD", {"axes": [0]}, lambda x: x.all(0), [TRUE]),
    ("ReduceAnyD", {"axes": [0]}, lambda x: x.any(0), [TRUE]),
    ("ArgMinD", {"dimension": 0, "dtype": 3}, lambda x: x.argmin(0).int(), [MATRIX]),
    ("CumprodD", {"axis": 0}, lambda x: x.cumprod(0), [MATRIX]),
    ("CumulativeLogsumexpD", {"axis": 1}, lambda x: x.logcumsumexp(1), [MATRIX]),
    ("BroadcastToD", {"shape": [2, 5, 7]}, lambda x: x.expand(2, 5, 7), [MATRIX]),
    ("SqueezeV2", {"axis": [0]}, lambda x: x.squeeze(0), [rand(1, 5)]),
    ("UnsqueezeV2", {"axis": [0, -1]}, lambda x: x[None, ..., None], [MATRIX]),
    ("TensorScatterUpdate", {}, lambda x, i, u: x.index_put((i[:, 0],), u), [MATRIX, AT, rand(2, 7)]),
    ("TensorScatterAdd", {}, lambda x, i, u: x.index_add(0, i[:, 0], u), [MATRIX, AT, rand(2, 7)]),
    (
        "UnsortedSegmentMaxD", {"num_segments": 3},
        lambda x, i: torch.stack([x[i == n].amax(0) for n in range(3)]), [MATRIX, IDS],
    ),
    (
        "UnsortedSegmentMinD", {"num_segments": 3},
        lambda x, i: torch.stack([x[i == n].amin(0) for n in range(3)]), [MATRIX, IDS],
    ),
    (
        "UnsortedSegmentProdD", {"num_segments": 3},
        lambda x, i: torch.stack([x[i == n].prod(0) for n in range(3)]), [MATRIX, IDS],
    ),
    ("BinaryCrossEntropy", {}, F.binary_cross_entropy, [HALF, TRUE.float()]),
    ("SigmoidCrossEntropyWithLogitsV2", {"reduction": "sum"},
     lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"), [MATRIX, TRUE.float()]),
    ("SoftMarginLoss", {"reduction": "none"}, lambda x, y: torch.log1p(torch.exp(-y * x)), [MATRIX, HALF]),
    ("L2Loss", {}, lambda x: (x**2).sum() / 2, [MATRIX]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "meaning", "tensors"), PLAIN, ids=[row[0] for row in PLAIN])
def test_kernel_equals_torch_formula(
    op: str, attrs: dict[str, Any], meaning: Any, tensors: list[torch.Tensor]
) -> None:
    check(lambda *given: getattr(ge, op)(*given, **attrs), meaning(*tensors), *tensors)


def test_lists_and_numbers() -> None:
    a, b = MATRIX, rand(5, 7) + 1
    check(lambda a, b: ge.AccumulateNV2([a, b], N=2), a + b, a, b)
    check(lambda a, b: ge.IdentityN([a, b], outputs=2), [a, b], a, b)
    values, indices = torch.topk(a, 3)
    check(lambda a: ge.TopK(a, 3), [values, indices.int()], a)
    check(lambda a: ge.Fill([2], ge.Rank(a)), torch.full((2,), 2, dtype=i32), a, dynamic=True)
    swapped = [b.reshape(7, 5), a.reshape(7, 5)]

    def make(a: Any, b: Any) -> Any:
        shapes = ge.ShapeN([a, b], dtype=9, outputs=2)
        return [ge.Reshape(x, ge.Gather(shape, [1, 0])) for x, shape in zip((b, a), shapes, strict=True)]

    check(make, swapped, a, b, dynamic=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ge.Permute(x, order=[1, 0]),
        lambda x: ge.FlattenV2(x, axis=0, end_axis=1),
        lambda x: ge.Flatten(x, axis=1),
        lambda x: ge.ExpandDims(x, 0),
        lambda x: ge.ReduceSumD(x, axes=[0]),
        lambda x: ge.Slice(x, [0, 1], [-1, 2]),
    ],
)
def test_kernel_accepts_empty_tensors(make: Any) -> None:
    for got in run(make, torch.empty(0, 4)):
        assert got[0].numel() in (0, 4)


def test_two_tables_of_pads_are_two_traces() -> None:
    """Pads are numbers, whatever the rank of the constant: an op is known by them, not by their shape."""
    x = MATRIX

    def make(x: Any) -> Any:
        pads = [torch.tensor([[0, 0], pair]) for pair in ([2, 1], [1, 2], [1, 4])]
        return [ge.MirrorPad(x, each, mode="REFLECT") for each in pads]

    expected = [F.pad(x, pair, "reflect") for pair in ((2, 1), (1, 2), (1, 4))]
    check(make, expected, x)
    check(make, expected, x, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize(
    ("dim", "correction", "unbiased"), [([1], 1, True), ([], 0, True), ([0, -1], 2, True), ([1], 1, False)]
)
def test_reduce_std_with_mean(dim: Any, correction: int, unbiased: bool, dtype: Any, dynamic: bool) -> None:
    x = rand(3, 4, 5, dtype=dtype)
    mean = x.mean(dim or None, keepdim=True).expand_as(x)
    expected = x.float().std(dim or None, correction=correction if unbiased else 0, keepdim=True).to(dtype)

    def make(x: Any, mean: Any) -> Any:
        return ge.ReduceStdWithMean(x, mean, dim=dim, keepdim=True, correction=correction, unbiased=unbiased)

    check(make, expected, x, mean, dynamic=dynamic, **WITHIN[dtype])
    check(make, expected, strided(x), mean, **WITHIN[dtype])


def test_reduce_std_of_too_few() -> None:
    x = rand(3, 1)
    check(lambda x, m: ge.ReduceStdWithMean(x, m, dim=[1]), torch.full((3,), torch.nan), x, x)
    empty = torch.empty(3, 0)
    check(lambda x, m: ge.ReduceStdWithMean(x, m, dim=[1]), torch.full((3,), torch.nan), empty, empty)
    with pytest.raises(UnsupportedOp, match="inverse"):
        run(lambda x, m: ge.ReduceStdWithMean(x, m, invert=True), x, x)


# Batch normalisation, against torch's own


def channels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(scale, offset, running mean, running variance)."""
    return rand(4) + 2, rand(4), rand(4) / 2, rand(4).abs() + 0.5


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize(("prefix", "shape"), [("BN", (3, 4, 5, 6)), ("BN3D", (2, 4, 3, 5, 6))])
def test_bn_training(prefix: str, shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool) -> None:
    x = strided(rand(*shape, dtype=dtype))
    scale, offset, mean, variance = channels(x)

    def make(x: Any, *given: Any) -> Any:
        sums = getattr(ge, f"{prefix}TrainingReduce")(x)
        return getattr(ge, f"{prefix}TrainingUpdate")(x, *sums, *given, factor=0.1, epsilon=1e-3)

    y, batch_mean, batch_rstd, new_mean, new_variance = aten._native_batch_norm_legit_functional(
        x.float(), scale, offset, mean, variance, True, 0.1, 1e-3
    )
    expected = y.to(dtype), new_mean, new_variance, batch_mean, batch_rstd**-2 - 1e-3
    within = WITHIN[dtype] or {"atol": 1e-4, "rtol": 1e-4}
    check(make, expected, x, scale, offset, mean, variance, dynamic=dynamic, **within)


@pytest.mark.parametrize("wide", [False, True], ids=["vectors", "broadcast"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize(("prefix", "shape"), [("BN", (3, 4, 5, 6)), ("BN3D", (2, 4, 3, 5, 6))])
def test_bn_training_gradients(
    prefix: str, shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool, wide: bool
) -> None:
    x, dy = rand(*shape, dtype=dtype), strided(rand(*shape, dtype=dtype).flip(0))
    variance, mean = torch.var_mean(x.float(), [dim for dim in range(x.ndim) if dim != 1], correction=0)
    scale = channels(x)[0]
    expected = aten.native_batch_norm_backward(
        dy.float(), x.float(), scale, None, None, mean, (variance + 1e-3).rsqrt(), True, 1e-3, [True] * 3
    )
    beside = [1, -1, *[1] * (x.ndim - 2)] if wide else [-1]

    def make(dy: Any, x: Any, scale: Any, mean: Any, variance: Any) -> Any:
        of = getattr(ge, f"{prefix}TrainingUpdateGrad")(dy, x, mean, variance, epsilon=1e-3)
        reduce = getattr(ge, f"{prefix}TrainingReduceGrad")
        return reduce(dy, x, *of, scale, mean, variance, epsilon=1e-3), *of

    statistics = [part.reshape(beside) for part in (scale, mean, variance)]
    dx, *of = expected
    wanted = dx.to(dtype), *(part.reshape(beside) for part in of)
    check(
        make, wanted, dy, x, *statistics, dynamic=dynamic, **(WITHIN[dtype] or {"atol": 1e-4, "rtol": 1e-4})
    )


@pytest.mark.parametrize("dtype", [f32, f16])
def test_bn_infer_grad(dtype: torch.dtype) -> None:
    dy = rand(3, 4, 5, 6, dtype=dtype)
    scale, _, mean, variance = channels(dy)
    expected = aten.native_batch_norm_backward(
        dy.float(), X, scale, mean, variance, None, None, False, 1e-4, [True, False, False]
    )[0]
    for dynamic in (False, True):
        check(
            lambda dy, s, v: ge.BNInferGrad(dy, s, v), expected.to(dtype), dy, scale, variance,
            dynamic=dynamic, **WITHIN[dtype],
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_sync_batch_norm_backward(dtype: torch.dtype) -> None:
    """The gradient in two steps, as processes that exchange sums compute it: that of one of them."""
    x, dy = rand(3, 4, 5, 6, dtype=dtype), rand(3, 4, 6, 5, dtype=dtype).mT
    weight = channels(x)[0].to(dtype).float()
    variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
    invstd = (variance + 1e-5).rsqrt()
    dx, dweight, _ = aten.native_batch_norm_backward(
        dy.float(), x.float(), weight, None, None, mean, invstd, True, 1e-5, [True] * 3
    )
    sums = dy.float().sum((0, 2, 3)), (dy.float() * x.float()).sum((0, 2, 3))
    count = x.numel() // x.shape[1]

    def make(dy: Any, x: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, sum_dy_x: Any) -> Any:
        sum_dy_xmu, of_weight = ge.SyncBatchNormBackwardReduce(sum_dy, sum_dy_x, mean, invstd)
        means = [ge.Muls(part, value=1 / count) for part in (sum_dy, sum_dy_xmu)]
        return ge.SyncBatchNormBackwardElemt(dy, x, mean, invstd, weight, *means), of_weight

    for dynamic in (False, True):
        check(
            make, (dx.to(dtype), dweight), dy, x, mean, invstd, weight, *sums, dynamic=dynamic,
            **(WITHIN[dtype] or {"atol": 1e-4, "rtol": 1e-4}),
        )  # fmt: skip


@STATIC_FIRST
@pytest.mark.parametrize("dtype", [f32, f16])
def test_group_norm_kernel_equals_eager(dtype: torch.dtype, dynamic: bool) -> None:
    """The format stays at its default, and the variance is that of the data, without epsilon."""
    x, weight, bias = rand(3, 4, 5, 6, dtype=dtype), rand(4).to(dtype), (rand(4) + 1).to(dtype)
    variance, mean = torch.var_mean(x.float().reshape(3, 2, -1), 2, correction=0)
    expected = F.group_norm(x, 2, weight, bias, 1e-3), mean.to(dtype), variance.to(dtype)
    check(
        lambda *given: ge.GroupNorm(*given, num_groups=2, eps=1e-3), expected, strided(x), weight, bias,
        dynamic=dynamic, **WITHIN[dtype],
    )  # fmt: skip


def test_group_norm_of_nothing() -> None:
    (_, mean, variance), _ = run(
        lambda *given: ge.GroupNorm(*given, num_groups=2), torch.empty(0, 4, 5, 6), rand(4), rand(4)
    )
    assert mean.shape == variance.shape == (0, 2)


@STATIC_FIRST
@pytest.mark.parametrize("dtype", [f32, f16])
def test_max_pool_v1(dtype: torch.dtype, dynamic: bool) -> None:
    """The second output is for the gradient alone."""
    x = strided(rand(2, 3, 9, 8, dtype=dtype))
    window = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 1, 1], "pads": [1, 1, 0, 1], "ceil_mode": True}
    y, indices = aten.max_pool2d_with_indices(x, [3, 2], [2, 1], [1, 0], [1, 1], True)
    dy = torch.randn_like(y)
    dx = aten.max_pool2d_with_indices_backward(dy, x, [3, 2], [2, 1], [1, 0], [1, 1], True, indices)

    def make(x: Any, dy: Any) -> Any:
        y, argmax = ge.MaxPoolWithArgmaxV1(x, **window)
        return y, ge.MaxPoolGradWithArgmaxV1(x, dy, argmax, **window)

    check(make, (y, dx), x, dy, dynamic=dynamic)


# Joining


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "join",
    [
        lambda *parts: ge.ConcatV2(list(parts), 0, N=len(parts)),
        lambda *parts: ge.Concat(0, list(parts), N=len(parts)),
        lambda *parts: ge.ConcatD(list(parts), concat_dim=0, N=len(parts)),
        lambda *parts: ge.ConcatV2D(list(parts), concat_dim=-1, N=len(parts)),
    ],
)
def test_a_tensor_without_dims_is_one_element(join: Any, dynamic: bool) -> None:
    a, b, c = torch.tensor(1.5), rand(3), torch.tensor(-2.0)
    check(join, torch.cat([a.reshape(1), b, c.reshape(1)]), a, b, c, dynamic=dynamic)
    check(join, torch.stack([a, c]), a, c, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_sizes_without_dims_are_joined_as_numbers(dynamic: bool) -> None:
    """A shape put together from single sizes is no data: what it makes has sizes that are known."""

    def make(x: Any) -> Any:
        rows, columns = ge.Unpack(ge.Shape(x, dtype=9), num=2, axis=0, outputs=2)
        one = ge.ConcatV2([columns, rows], 0, N=2)
        other = ge.Concat(0, [ge.ExpandDims(columns, 0), rows], N=2)
        return ge.Reshape(x, one), ge.Reshape(x, other)

    check(make, [MATRIX.reshape(7, 5)] * 2, MATRIX, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [3, 9])
def test_a_range_to_the_largest_integer_ends_at_the_size(dtype: int, dynamic: bool) -> None:
    """`x[1::2] = src` as places: the end of a slice without end is 2**63 - 1, and the smaller one counts."""

    def make(x: Any, src: Any) -> Any:
        size = ge.Gather(ge.Shape(x, dtype=dtype), 0)
        end = ge.Minimum(ge.Cast(ge.Const(2**63 - 1, dtype=9), dst_type=dtype), size)
        start, step = ge.Const(1, dtype=dtype), ge.Const(2, dtype=dtype)
        places = ge.Cast(ge.Range(start, end, step), dst_type=9)
        places = ge.Expand(ge.Unsqueeze(places, axes=[1]), ge.Shape(src, dtype=9))
        return ge.ScatterElements(x, places, src, axis=0)

    src = rand(2, 7)
    expected = MATRIX.clone()
    expected[1::2] = src
    check(make, expected, MATRIX, src, dynamic=dynamic)


# What cannot be


def test_a_parameter_at_an_address_has_no_value_here() -> None:
    graph = Graph("frozen")
    with graph:
        op = ge.ConstPlaceHolder(
            origin_shape=[2], origin_format=2, storage_shape=[2], storage_format=2, expand_dim_rules="",
            dtype=0, addr=1 << 40, size=8, node_name="ConstPlaceHolder_3",
        ).op  # fmt: skip
    assert not has_kernel("ConstPlaceHolder")
    with pytest.raises(UnsupportedOp, match="ConstPlaceHolder") as caught:
        evaluate(op, {}, CPU)
    text = str(caught.value)
    assert "op ConstPlaceHolder_3" in text
    assert "address of the process that made the graph" in text
    assert re.search("next .*weights", text)


def test_none_of_them_is_emitted_here() -> None:
    """Who emits one of them tests it with its converter."""
    emitted = {op for ops in emitted_by_target().values() for op in ops}
    names = {name.split()[0] for name in ROWS} - {"PReluGrad"}
    assert not emitted & names


@pytest.mark.parametrize("shape", [[3], [1, 3]])
def test_constants_of_any_kind_are_numbers_where_numbers_are_wanted(shape: list[int]) -> None:
    order = torch.tensor([1, 0, 2], dtype=torch.int32).reshape(shape)
    x = rand(2, 3, 4)
    check(lambda x: ge.Transpose(x, order), x.permute(1, 0, 2), x, dynamic=True)
