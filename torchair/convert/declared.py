"""The declared cases of built-in converters, by family: rows that the converter self-test runs against eager.

A table of data. A case stands for a kind of call: dtypes, broadcasting, numbers, negative dims.
"""

from __future__ import annotations

import torch

from torchair.convert.support import (
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Support,
    T,
    supported,
)

aten = torch.ops.aten

FLOATS = [Support(x(2, 3)) for x in (F32, F16, BF16, F64)]
NUMERIC = [*FLOATS, Support(I32(2, 3)), Support(I64(4))]
IN_UNIT = (-0.9, 0.9)
POSITIVE = (0.2, 3.0)
SHAPES = [Support(F32(2, 3), F32(2, 3)), Support(F16(2, 3), F16(3)), Support(BF16(2, 1), BF16(1, 3))]
MIXED = [Support(F32(2, 3), F16(3)), Support(I32(2, 3), F32(3)), Support(I64(2, 3), I32(2, 1))]
INTS = [Support(x(2, 3), x(3)) for x in (I32, I64, I16)]

# pointwise

supported(
    aten.sin.default,
    aten.cos.default,
    aten.tanh.default,
    aten.exp.default,
    aten.sigmoid.default,
    aten.erf.default,
    aten.erfc.default,
    aten.expm1.default,
    aten.atan.default,
    aten.sinh.default,
    aten.cosh.default,
    aten.asinh.default,
    aten.exp2.default,
    cases=[*FLOATS, Support(I32(2, 3))],
)
supported(
    aten.asin.default,
    aten.acos.default,
    aten.atanh.default,
    aten.erfinv.default,
    cases=[Support(x(2, 3, value_range=IN_UNIT)) for x in (F32, F64)],
)
supported(
    aten.log.default,
    aten.log2.default,
    aten.log10.default,
    aten.log1p.default,
    aten.sqrt.default,
    aten.rsqrt.default,
    aten.reciprocal.default,
    cases=[Support(x(2, 3, value_range=POSITIVE)) for x in (F32, F16, BF16)],
)
supported(aten.acosh.default, cases=[Support(F32(2, 3, value_range=(1.1, 3.0)))])
supported(aten.tan.default, cases=[Support(F32(2, 3, value_range=IN_UNIT))])
supported(aten.abs.default, aten.neg.default, aten.sign.default, aten.square.default, cases=NUMERIC)
supported(
    aten.floor.default,
    aten.ceil.default,
    aten.trunc.default,
    aten.round.default,
    aten.frac.default,
    cases=FLOATS,
)
supported(
    aten.add.Tensor,
    aten.sub.Tensor,
    cases=[
        *SHAPES,
        *MIXED,
        Support(F32(2, 2), F16(2, 1), alpha=2),
        Support(I64(3), I64(3), alpha=-3),
        Support(F32(2, 3), 2),
        Support(F32(2, 3), 0.5),
        Support(C64(2, 3), C64(3)),
    ],
)
supported(
    aten.add.Scalar,
    aten.sub.Scalar,
    cases=[Support(F32(2, 3), 2), Support(I64(2, 3), 3, 2), Support(F16(3), 0.5)],
)
supported(aten.rsub.Scalar, cases=[Support(F32(2, 3), 2), Support(F16(3), 0.5, 2)])
supported(aten.rsub.Tensor, cases=[Support(F32(2, 3), F32(3)), Support(F32(2, 3), F32(3), alpha=2)])
supported(
    aten.mul.Tensor,
    cases=[
        *SHAPES,
        *MIXED,
        Support(F32(2, 3), 2),
        Support(C64(2, 3), C64(3)),
        Support(BOOL(2, 3), F32(2, 3)),
        Support(BOOL(2, 3), BOOL(2, 3)),
    ],
)
supported(aten.mul.Scalar, cases=[Support(F32(2, 3), 2), Support(I64(2, 3), 3), Support(F16(3), 0.5)])
supported(
    aten.div.Tensor,
    aten.true_divide.Tensor,
    cases=[
        Support(F32(2, 3), F32(3)),
        Support(F16(2, 3), F16(2, 3)),
        Support(I32(2, 3), T([1, 2, 3], dtype=torch.int32)),
        Support(F32(2, 3), 2),
    ],
)
supported(aten.div.Scalar, cases=[Support(F32(2, 3), 2), Support(I64(2, 3), 4)])
supported(
    aten.div.Tensor_mode,
    cases=[
        Support(x(2, 3), y, rounding_mode=mode)
        for x, y in ((F32, F32(3)), (I64, T([2, -3, 4])))
        for mode in ("floor", "trunc")
    ],
)
supported(
    aten.floor_divide.default,
    aten.remainder.Tensor,
    aten.fmod.Tensor,
    cases=[Support(F32(2, 3), T([0.5, -0.75, 2.0])), Support(I64(2, 3), T([2, -3, 4]))],
)
supported(aten.remainder.Scalar, aten.fmod.Scalar, cases=[Support(F32(2, 3), 0.7), Support(I32(2, 3), -3)])
supported(
    aten.pow.Tensor_Scalar,
    cases=[Support(F32(2, 3), 2), Support(F32(2, 3, value_range=POSITIVE), 0.5), Support(I64(4), 3)],
)
supported(aten.pow.Tensor_Tensor, cases=[Support(F32(2, 3, value_range=POSITIVE), F32(3))])
supported(aten.pow.Scalar, cases=[Support(2, F32(2, 3)), Support(1.5, F16(3))])
supported(
    aten.maximum.default,
    aten.minimum.default,
    aten.fmax.default,
    aten.fmin.default,
    cases=[*SHAPES, *MIXED, *INTS],
)
supported(
    aten.atan2.default,
    aten.hypot.default,
    aten.copysign.Tensor,
    cases=[Support(F32(2, 3), F32(3)), Support(F64(2, 3), F64(2, 3))],
)
supported(
    aten.clamp.default,
    cases=[
        Support(F32(2, 3), -0.5, 0.5),
        Support(F32(2, 3), None, 0.5),
        Support(F32(2, 3), min=0.1),
        Support(I64(4), -1, 1),
    ],
)
supported(aten.clamp.Tensor, cases=[Support(F32(2, 3), F32(3), None), Support(F32(2, 3), T(-0.5), T(0.5))])
supported(aten.clamp_min.default, aten.clamp_max.default, cases=[Support(F32(2, 3), 0.1), Support(I64(4), 0)])
supported(aten.lerp.Scalar, cases=[Support(F32(2, 3), F32(3), 0.25)])
supported(aten.lerp.Tensor, cases=[Support(F32(2, 3), F32(2, 3), F32(3))])
supported(
    aten.addcmul.default,
    cases=[Support(F32(2, 3), F32(3), F32(2, 1)), Support(F16(2, 3), F16(2, 3), F16(3), value=0.5)],
)
supported(aten.addcdiv.default, cases=[Support(F32(2, 3), F32(3), F32(2, 1, value_range=POSITIVE), value=2)])
supported(
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.bitwise_xor.Tensor,
    cases=[*INTS, Support(BOOL(2, 3), BOOL(3))],
)
supported(
    aten.bitwise_not.default, cases=[Support(I32(2, 3)), Support(BOOL(2, 3)), Support(U8(4)), Support(I8(4))]
)
supported(
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    cases=[Support(BOOL(2, 3), BOOL(3)), Support(F32(2, 3), I32(3))],
)
supported(aten.logical_not.default, cases=[Support(BOOL(2, 3)), Support(F32(2, 3)), Support(I64(3))])
supported(
    aten.nan_to_num.default,
    cases=[Support(T([1.0, float("nan"), float("inf")])), Support(T([float("-inf"), 2.0]), 0.5, 1.0, -1.0)],
)
supported(aten.xlogy.Tensor, cases=[Support(F32(2, 3), F32(3, value_range=POSITIVE))])

# compare

supported(
    aten.eq.Tensor,
    aten.ne.Tensor,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.gt.Tensor,
    aten.ge.Tensor,
    cases=[*SHAPES, *MIXED, *INTS],
)
supported(
    aten.eq.Scalar,
    aten.ne.Scalar,
    aten.lt.Scalar,
    aten.le.Scalar,
    aten.gt.Scalar,
    aten.ge.Scalar,
    cases=[Support(F32(2, 3), 0), Support(I64(2, 3), 0.5), Support(F16(3), 1)],
)
supported(
    aten.where.self, cases=[Support(BOOL(2, 3), F32(2, 3), F32(3)), Support(BOOL(2, 1), I64(3), F32(2, 3))]
)
supported(
    aten.isnan.default,
    aten.isinf.default,
    aten.isfinite.default,
    cases=[Support(T([1.0, float("nan"), float("-inf")])), Support(F16(2, 3)), Support(I32(3))],
)
supported(
    aten.masked_fill.Scalar,
    cases=[Support(F32(2, 3), BOOL(2, 3), -1), Support(F16(2, 3), BOOL(3), float("-inf"))],
)
supported(aten.masked_fill.Tensor, cases=[Support(F32(2, 3), BOOL(2, 3), T(0.5))])

# activation

supported(
    aten.relu.default,
    aten.silu.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.selu.default,
    aten.mish.default,
    aten.relu6.default,
    cases=FLOATS,
)
supported(
    aten.gelu.default,
    cases=[*FLOATS, Support(F32(2, 3), approximate="tanh"), Support(F16(2, 3), approximate="tanh")],
)
supported(aten.elu.default, cases=[Support(F32(2, 3)), Support(F32(2, 3), 0.5, 1.5, 2)])
supported(aten.celu.default, cases=[Support(F32(2, 3)), Support(F32(2, 3), 0.5)])
supported(aten.leaky_relu.default, cases=[Support(F32(2, 3)), Support(F16(2, 3), 0.3)])
supported(aten.softplus.default, cases=[Support(F32(2, 3)), Support(F32(2, 3), 2, 1)])
supported(aten.hardtanh.default, cases=[Support(F32(2, 3)), Support(F32(2, 3), -0.5, 0.25)])
supported(
    aten.softshrink.default, aten.hardshrink.default, cases=[Support(F32(2, 3)), Support(F32(2, 3), 0.25)]
)
supported(aten.threshold.default, cases=[Support(F32(2, 3), 0.1, 20.0)])
supported(aten.glu.default, cases=[Support(F32(2, 4)), Support(F32(4, 3), 0)])
supported(
    aten._softmax.default,
    aten._log_softmax.default,
    cases=[Support(F32(2, 3), 1, False), Support(F16(2, 3, 4), -1, False), Support(F32(2, 3), 0, False)],
)
supported(
    aten.silu_backward.default,
    aten.sigmoid_backward.default,
    aten.tanh_backward.default,
    aten.hardswish_backward.default,
    aten.mish_backward.default,
    cases=[Support(F32(2, 3), F32(2, 3, value_range=IN_UNIT))],
)
supported(
    aten.gelu_backward.default,
    cases=[Support(F32(2, 3), F32(2, 3)), Support(F32(2, 3), F32(2, 3), approximate="tanh")],
)
supported(aten.threshold_backward.default, cases=[Support(F32(2, 3), F32(2, 3), 0)])

# reduce

supported(aten.sum.default, aten.mean.default, cases=[Support(F32(2, 3)), Support(F64(2, 3, 4))])
supported(
    aten.sum.dim_IntList,
    cases=[
        Support(F32(2, 3), [1]),
        Support(F32(2, 3, 4), [0, -1], True),
        Support(I32(2, 3), [0]),
        Support(F16(2, 3), [1], dtype=torch.float32),
        Support(BOOL(2, 3), [1]),
        Support(F32(2, 3), None),
    ],
)
supported(
    aten.mean.dim,
    cases=[
        Support(F32(2, 3), [1]),
        Support(BF16(2, 3, 4), [0, -1], True),
        Support(F16(2, 3), [1], dtype=torch.float32),
    ],
)
supported(
    aten.amax.default,
    aten.amin.default,
    cases=[Support(F32(2, 3)), Support(F32(2, 3, 4), [0, -1], True), Support(I64(2, 3), [1])],
)
supported(
    aten.max.dim,
    aten.min.dim,
    cases=[Support(F32(2, 3), 1), Support(F32(2, 3), 0, True), Support(I64(5), -1)],
)
supported(
    aten.max.default, aten.min.default, aten.prod.default, cases=[Support(F32(2, 3)), Support(I64(2, 3))]
)
supported(aten.prod.dim_int, cases=[Support(F32(2, 3), 1), Support(F32(2, 3), 0, True)])
supported(
    aten.argmax.default,
    aten.argmin.default,
    cases=[Support(F32(2, 3)), Support(F32(2, 3), 1), Support(F32(2, 3), 0, True)],
)
supported(aten.any.default, aten.all.default, cases=[Support(BOOL(2, 3)), Support(F32(2, 3))])
supported(aten.any.dim, aten.all.dim, cases=[Support(BOOL(2, 3), 1), Support(F32(2, 3), 0, True)])
supported(
    aten.var.correction,
    aten.std.correction,
    cases=[
        Support(F32(2, 3), [1]),
        Support(F32(2, 3), None, correction=0),
        Support(F32(2, 3), [0, 1], correction=1, keepdim=True),
    ],
)
supported(
    aten.cumsum.default,
    aten.cumprod.default,
    cases=[Support(F32(2, 3), 1), Support(I32(2, 3), 0), Support(F16(4), -1, dtype=torch.float32)],
)
supported(aten.logsumexp.default, cases=[Support(F32(2, 3), [1]), Support(F32(2, 3), [0, 1], True)])
supported(
    aten.linalg_vector_norm.default,
    cases=[Support(F32(2, 3)), Support(F32(2, 3), 1, [1]), Support(F32(2, 3), 2, [0], True)],
)

# matmul

supported(aten.mm.default, cases=[Support(x(2, 3), x(3, 4)) for x in (F32, F16, BF16)])
supported(aten.bmm.default, cases=[Support(x(2, 3, 4), x(2, 4, 5)) for x in (F32, F16)])
supported(
    aten.addmm.default,
    cases=[
        Support(F32(4), F32(2, 3), F32(3, 4)),
        Support(F32(2, 4), F32(2, 3), F32(3, 4), beta=0.5, alpha=2),
    ],
)
supported(
    aten.baddbmm.default,
    cases=[
        Support(F32(2, 3, 5), F32(2, 3, 4), F32(2, 4, 5)),
        Support(F32(5), F32(2, 3, 4), F32(2, 4, 5), beta=2),
    ],
)
supported(
    aten.matmul.default,
    cases=[
        Support(F32(2, 3), F32(3, 4)),
        Support(F32(5, 2, 3), F32(3, 4)),
    ],
)
supported(
    aten.linear.default, cases=[Support(F32(2, 3), F32(4, 3)), Support(F32(2, 5, 3), F32(4, 3), F32(4))]
)

# shape

supported(aten.permute.default, cases=[Support(F32(2, 3, 4), [2, 0, 1]), Support(F32(2, 3), [-1, 0])])
supported(aten.transpose.int, cases=[Support(F32(2, 3, 4), 0, -1)])
supported(aten.t.default, cases=[Support(F32(2, 3)), Support(F32(3))])
supported(
    aten.view.default,
    aten.reshape.default,
    cases=[Support(F32(2, 6), [3, 4]), Support(F32(2, 6), [-1]), Support(I64(2, 6), [2, 3, 2])],
)
supported(aten.unsqueeze.default, cases=[Support(F32(2, 3), 0), Support(F32(2, 3), -1)])
supported(aten.squeeze.dim, cases=[Support(F32(2, 1, 3), 1), Support(F32(2, 3), 0)])
supported(aten.squeeze.dims, cases=[Support(F32(1, 2, 1), [0, 2])])
supported(aten.squeeze.default, cases=[Support(F32(1, 2, 1))])
supported(aten.expand.default, cases=[Support(F32(2, 1), [2, 3]), Support(F32(3), [2, -1])])
supported(
    aten.cat.default,
    cases=[Support([F32(2, 3), F32(1, 3)]), Support([F16(2, 3), F32(2, 1)], -1), Support([I64(2), I64(3)])],
)
supported(aten.stack.default, cases=[Support([F32(2, 3), F32(2, 3)]), Support([F32(2, 3), F32(2, 3)], -1)])
supported(aten.split.Tensor, cases=[Support(F32(5, 3), 2), Support(F32(2, 6), 3, 1)])
supported(aten.split_with_sizes.default, cases=[Support(F32(5, 3), [2, 3]), Support(F32(2, 6), [1, 5], -1)])
supported(aten.unbind.int, cases=[Support(F32(2, 3)), Support(F32(2, 3), -1)])
supported(
    aten.slice.Tensor,
    cases=[
        Support(F32(4, 3), 0, 1, 3),
        Support(F32(4, 3), 1, -2),
        Support(F32(4, 6), 1, 0, 9223372036854775807, 2),
    ],
)
supported(aten.select.int, cases=[Support(F32(2, 3), 0, 1), Support(F32(2, 3), -1, -1)])
supported(aten.flip.default, cases=[Support(F32(2, 3), [0]), Support(I64(2, 3), [0, -1])])
supported(aten.roll.default, cases=[Support(F32(2, 3), [1]), Support(F32(2, 3), [1, -1], [0, 1])])
supported(aten.repeat.default, cases=[Support(F32(2, 3), [2, 2]), Support(F32(3), [2, 1])])
supported(
    aten.tril.default,
    aten.triu.default,
    cases=[Support(F32(3, 3)), Support(F32(2, 3, 4), 1), Support(I64(4, 3), -1)],
)
supported(aten.diagonal.default, cases=[Support(F32(3, 3)), Support(F32(2, 3, 4), 1, 1, 2)])

# index

supported(
    aten.index_select.default, cases=[Support(F32(4, 3), 0, T([0, 2])), Support(F32(4, 3), -1, T([2, 2, 0]))]
)
supported(aten.gather.default, cases=[Support(F32(2, 3), 1, T([[0, 2], [1, 1]]))])
supported(
    aten.embedding.default,
    cases=[Support(F32(5, 3), T([[0, 4], [2, 1]])), Support(F16(5, 3), T([1, 2], dtype=torch.int32))],
)
supported(
    aten.index.Tensor,
    cases=[
        Support(F32(4, 3), [T([0, 2])]),
        Support(F32(4, 3), [None, T([2, 0])]),
        Support(F32(4, 3), [T([0, 1]), T([1, 2])]),
    ],
)
supported(
    aten.index_put.default,
    cases=[Support(F32(4, 3), [T([0, 2])], F32(2, 3)), Support(F32(4, 3), [T([0, 0])], F32(2, 3), True)],
)
supported(aten.scatter.src, cases=[Support(F32(2, 3), 1, T([[0, 2], [1, 0]]), F32(2, 2))])
supported(aten.scatter.value, cases=[Support(F32(2, 3), 1, T([[0, 2], [1, 0]]), 0.5)])
supported(aten.scatter_add.default, cases=[Support(F32(2, 3), 0, T([[0, 0, 1]]), F32(2, 3))])
supported(
    aten.index_add.default,
    cases=[Support(F32(4, 3), 0, T([0, 2]), F32(2, 3)), Support(F32(4, 3), 0, T([1, 1]), F32(2, 3), alpha=2)],
)
supported(aten.slice_scatter.default, cases=[Support(F32(4, 3), F32(2, 3), 0, 1, 3)])
supported(aten.select_scatter.default, cases=[Support(F32(4, 3), F32(3), 0, 1)])
supported(aten.nonzero.default, cases=[Support(T([0, 3, 0, 1])), Support(BOOL(2, 3))])
supported(aten.masked_select.default, cases=[Support(F32(2, 3), BOOL(2, 3))])

# sort

supported(aten.sort.default, cases=[Support(F32(2, 5)), Support(F32(4, 3), 0, True)])
supported(
    aten.topk.default,
    cases=[Support(F32(2, 5), 2), Support(F32(5, 2), 3, 0), Support(F32(2, 5), 2, -1, False)],
)

# norm

supported(
    aten.native_layer_norm.default,
    cases=[Support(F32(2, 3, 4), [4], F32(4), F32(4), 1e-5), Support(F32(2, 3, 4), [3, 4], None, None, 1e-5)],
)
supported(aten.native_group_norm.default, cases=[Support(F32(2, 4, 5), F32(4), F32(4), 2, 4, 5, 2, 1e-5)])
supported(
    aten._native_batch_norm_legit_no_training.default,
    cases=[Support(F32(2, 3, 4, 4), F32(3), F32(3), F32(3), F32(3, value_range=POSITIVE), 0.1, 1e-5)],
)

# conv, pool, pad

supported(
    aten.convolution.default,
    cases=[
        Support(F32(1, 2, 5, 5), F32(3, 2, 3, 3), F32(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Support(F32(1, 4, 6, 6), F32(4, 2, 3, 3), None, [2, 2], [0, 0], [1, 1], False, [0, 0], 2),
        Support(F32(1, 2, 7), F32(3, 2, 3), F32(3), [1], [1], [1], False, [0], 1),
        Support(F32(1, 3, 4, 4), F32(3, 2, 3, 3), F32(2), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    ],
)
supported(
    aten.avg_pool2d.default,
    cases=[Support(F32(1, 2, 6, 6), [2, 2]), Support(F32(1, 2, 6, 6), [3, 3], [2, 2], [1, 1])],
)
supported(
    aten.max_pool2d_with_indices.default,
    cases=[Support(F32(1, 2, 6, 6), [2, 2]), Support(F32(1, 2, 6, 6), [3, 3], [2, 2], [1, 1])],
)
supported(
    aten._adaptive_avg_pool2d.default,
    cases=[Support(F32(1, 2, 6, 6), [1, 1]), Support(F32(1, 2, 6, 6), [3, 2])],
)
supported(
    aten.constant_pad_nd.default, cases=[Support(F32(2, 3), [1, 2]), Support(F32(2, 3), [1, 0, 0, 1], 0.5)]
)
supported(
    aten.reflection_pad1d.default, aten.replication_pad1d.default, cases=[Support(F32(1, 2, 5), [1, 2])]
)
supported(aten.upsample_nearest2d.default, cases=[Support(F32(1, 2, 3, 3), [6, 6])])

# loss

supported(
    aten.mse_loss.default,
    cases=[Support(F32(2, 3), F32(2, 3)), Support(F32(2, 3), F32(2, 3), 0), Support(F32(2, 3), F32(2, 3), 2)],
)
supported(aten.nll_loss_forward.default, cases=[Support(F32(3, 4), T([0, 3, 2]), None, 1, -100)])

# fft

supported(
    aten._fft_c2c.default,
    cases=[
        Support(C64(2, 6), [1], 0, True),
        Support(C64(2, 6), [0], 1, False),
        Support(C64(2, 3, 4), [1, 2], 2, False),
        Support(C64(2, 3, 4), [0, 1, 2], 0, True),
    ],
)
supported(
    aten._fft_r2c.default,
    cases=[
        Support(F32(2, 6), [1], 0, True),
        Support(F64(2, 5), [1], 1, True),
        Support(F32(3, 4), [0, 1], 0, False),
    ],
)
supported(aten._fft_c2r.default, cases=[Support(C64(2, 4), [1], 2, 6), Support(C64(3, 4), [0, 1], 0, 7)])
supported(aten.fft_fftfreq.default, aten.fft_rfftfreq.default, cases=[Support(5, 0.5)])

# complex

supported(aten.view_as_real.default, aten.real.default, aten.imag.default, cases=[Support(C64(2, 3))])
supported(aten.view_as_complex.default, cases=[Support(F32(3, 2)), Support(F64(2, 3, 2))])
supported(
    aten.angle.default,
    aten.conj_physical.default,
    cases=[Support(C64(2, 3)), Support(F32(3))],
)
supported(aten.complex.default, aten.polar.default, cases=[Support(F32(2, 3), F32(2, 3))])

# linalg

SQUARE = [Support(F32(4, 4)), Support(F64(2, 3, 3)), Support(C64(2, 3, 3))]
DEFINITE = [Support(T([[2.0, 0.5], [0.5, 1.0]])), Support(T([[[4.0, 1.0], [1.0, 3.0]]], dtype=torch.float64))]
supported(aten.linalg_inv_ex.default, cases=SQUARE)
supported(aten.linalg_lu.default, cases=[*SQUARE, Support(F32(5, 2)), Support(F32(2, 2, 5))])
supported(aten.linalg_cholesky_ex.default, cases=DEFINITE)
supported(aten.cholesky_inverse.default, cases=DEFINITE)
supported(aten.cholesky_solve.default, cases=[Support(F32(2, 3), T([[2.0, 0.0], [0.5, 1.0]]))])
supported(
    aten.linalg_solve_triangular.default,
    cases=[
        Support(T([[2.0, 0.0], [0.5, 1.0]]), F32(2, 3), upper=False),
        Support(T([[2.0, 0.5], [0.0, 1.0]]), F32(3, 2), upper=True, left=False),
    ],
)
supported(
    aten.linalg_qr.default,
    cases=[Support(F32(4, 3)), Support(F32(3, 4), "complete"), Support(F32(4, 3), "r")],
)
supported(
    aten._linalg_svd.default,
    cases=[Support(F32(4, 3)), Support(F32(3, 4), True), Support(F32(3, 3), False, False)],
)
supported(aten._linalg_eigh.default, cases=[Support(F32(3, 3)), Support(F32(2, 3, 3), "U", False)])
supported(aten.linalg_pinv.atol_rtol_tensor, cases=[Support(F32(4, 3)), Support(F32(3, 3), rtol=T(0.1))])
supported(
    aten.linalg_cross.default, cases=[Support(F32(2, 3), F32(2, 3)), Support(I32(3, 2), I32(3, 2), dim=0)]
)

# create and copy

supported(aten.arange.default, cases=[Support(5)])
supported(aten.arange.start_step, cases=[Support(1, 7, 2), Support(0.0, 1.0, 0.25)])
supported(aten.full.default, cases=[Support([2, 3], 1.5), Support([2], 3, dtype=torch.int32)])
supported(aten.full_like.default, cases=[Support(F32(2, 3), 2), Support(F32(2, 3), 1, dtype=torch.int64)])
supported(
    aten.zeros_like.default,
    aten.ones_like.default,
    cases=[Support(F32(2, 3)), Support(F32(2, 3), dtype=torch.bool)],
)
supported(aten.zeros.default, aten.ones.default, cases=[Support([2, 3]), Support([2], dtype=torch.float16)])
supported(aten.eye.default, cases=[Support(3)])
supported(aten.linspace.default, cases=[Support(0.0, 1.0, 5)])
supported(
    aten._to_copy.default,
    cases=[
        Support(F32(2, 3), dtype=torch.float16),
        Support(I64(3), dtype=torch.float32),
        Support(F32(3), dtype=torch.bool),
    ],
)
supported(aten.clone.default, cases=[Support(F32(2, 3))])

# several tensors at once

supported(
    aten._foreach_add.List, aten._foreach_mul.List, cases=[Support([F32(2, 3), F32(4)], [F32(2, 3), F32(4)])]
)
supported(aten._foreach_add.Scalar, aten._foreach_mul.Scalar, cases=[Support([F32(2, 3), F32(4)], 0.5)])
supported(aten._foreach_exp.default, aten._foreach_neg.default, cases=[Support([F32(2, 3), F32(4)])])
