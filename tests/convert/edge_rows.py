"""The calls that are tried at the numbers where formulas break.

`python -m tests.convert.edge_rows [NAME ...]` checks rows and prints what fails.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import mpmath
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal import common_methods_invocations as table
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from tests.convert.edges import (
    COMPLEX,
    FLOATS,
    INF,
    INTS,
    NAN,
    Call,
    Make,
    Row,
    Seen,
    bf16,
    check,
    divisible,
    edges,
    f16,
    f32,
    f64,
    line,
    matrix,
    moderate,
    pairs,
    probabilities,
    two_matrices,
)
from tests.convert.opinfo import name_of

special, aten = torch.special, torch.ops.aten


def gradient(call: Call, count: int = 2) -> Call:
    """The gradients of the first so many tensors of a call, each result weighted alike."""

    def run(*tensors: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_(place < count) for place, tensor in enumerate(tensors)]
            result = call(*leaves)
            result = result if isinstance(result, Tensor) else result[0]
            return torch.autograd.grad(
                result, leaves[:count], torch.ones_like(result), materialize_grads=True
            )

    return run


# The table. A row of the first two groups is an operator of PyTorch's own table.

LEFT_OUT = {
    "nn.functional.rrelu": "random",
    "nn.functional.prelu": "it has two tensors; it is a row below",
    "polygamma": "it loops once for each integer left of zero; it is a row below",
    "special.polygamma": "the same op",
    "special.zeta": "the same loop; it is a row below",
    "jiterator_unary": "only for GPUs",
    "jiterator_binary": "only for GPUs",
    "jiterator_binary_return_by_ref": "only for GPUs",
}
# torch's decompositions of complex numbers lose infinities and signs of zeros; eager overflows in float16.
DTYPES_LEFT_OUT: dict[str, Sequence[torch.dtype]] = {
    "logaddexp": COMPLEX,
    "nn.functional.silu": COMPLEX,
    "mvlgamma": (f16,),
}
# Left of zero, and of waves, errors are as large beside a zero of the function as its terms there.
SIZES = {
    "lgamma": 1.0,
    "mvlgamma": 8.0,
    "digamma": 1.0,
    "special.airy_ai": 1.0,
    "special.bessel_j0": 1.0,
    "special.bessel_j1": 1.0,
    "special.bessel_y0": 1.0,
    "special.bessel_y1": 1.0,
    "point gelu gradient": 1.0,
    "point gelu tanh gradient": 1.0,
    **dict.fromkeys(("logaddexp", "logaddexp2", "pair logaddexp", "pair logaddexp2"), 1.0),
    **dict.fromkeys(("rows softmax gradient", "rows log_softmax gradient", "rows layer_norm gradient"), 1.0),
    **dict.fromkeys(("rows rms_norm gradient", "rows normalize gradient"), 1.0),
}


# Of these, eager is not exact in float64 either.
TRUTHS: dict[str, Call] = {
    "lgamma": lambda x: mpmath.loggamma(x).real,
    "digamma": mpmath.digamma,
    "lgamma gradient": mpmath.digamma,
    "special.airy_ai": mpmath.airyai,
    "special.bessel_y0": lambda x: mpmath.bessely(0, x),
    "special.bessel_y1": lambda x: mpmath.bessely(1, x),
    "polygamma 0": mpmath.digamma,
    "special.modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "special.modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "special.scaled_modified_bessel_k0": lambda x: mpmath.exp(x) * mpmath.besselk(0, x),
    "special.scaled_modified_bessel_k1": lambda x: mpmath.exp(x) * mpmath.besselk(1, x),
}
# Eager has the others not, or fuses a product and a sum of doubles where the IR has no op for it, or flushes
# subnormal doubles, or takes the last of several NaNs.
_SINGLE = (f32, bf16, f16)
DTYPES: dict[str, Sequence[torch.dtype]] = {
    **dict.fromkeys(
        ("point log_ndtr", "point polar", "rows multi_margin", "pair complex", "rows bilinear aa"), (f32, f64)
    ),
    **dict.fromkeys(("pair lerp", "pair lerp beyond", "pair lerp to the end", "pair add alpha"), _SINGLE),
    **dict.fromkeys(
        ("pair sub alpha", "rows norm -2", "rows max_pool gradient", "pair lerp tensor"), _SINGLE
    ),
    "loss of probabilities bce gradient": (f32, bf16),  # of doubles eager rounds a limit to float32
}
# There they are exact beside their zeros too. The exponent of Airy's function grows to 100.
RIGHT_OF_ZERO = {"lgamma": 4.0, "digamma": 4.0, "special.airy_ai": 128.0}


def positive(dtype: torch.dtype) -> list[Tensor]:
    """The edges above zero."""
    return [torch.tensor([x for x in edges(dtype) if x > 0], dtype=dtype)]


RIGHT: Make = lambda dtype: [torch.tensor([x for x in edges(dtype) if not -1e300 < x < -1e4], dtype=dtype)]  # noqa: E731


def tame(dtype: torch.dtype) -> list[Tensor]:
    """The edges without the huge ones, of which no phase is known."""
    known = [x for x in edges(dtype) if dtype in INTS or not 1e6 < abs(x) < INF]
    return [torch.tensor(known, dtype=dtype)]


def without_least(dtype: torch.dtype) -> list[Tensor]:
    """All pairs without the least integer, whose magnitude is none."""
    x, y = pairs(dtype)
    is_kept = (x != torch.iinfo(dtype).min) & (y != torch.iinfo(dtype).min)
    return [x[is_kept], y[is_kept]]


MAKES: dict[str, Make] = {"special.airy_ai": tame, "lcm": without_least, "gcd": without_least}


def from_table() -> Iterator[Row]:
    """Functions of one number and of two, with the keywords of their first sample."""
    for op in table.op_db:
        if op.name in LEFT_OUT or not isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo):
            continue
        is_unary = isinstance(op, UnaryUfuncInfo)
        left_out = DTYPES_LEFT_OUT.get(op.name, ())
        known = [
            dtype
            for dtype in (*FLOATS, *INTS, *COMPLEX)
            if dtype in op.supported_dtypes("cpu") and dtype not in left_out
        ]
        keywords = (
            op.sample_kwargs("cpu", f32, torch.ones(1))[0] if is_unary else KEYWORDS.get(name_of(op), {})
        )
        if not known:
            continue
        yield Row(
            name_of(op),
            functools.partial(op.op, **keywords),
            MAKES.get(op.name, line if is_unary else pairs),
            known,
            size=SIZES.get(op.name, 0.0),
            truth=TRUTHS.get(op.name),
        )


KEYWORDS: dict[str, dict[str, Any]] = {
    "div:floor_rounding": {"rounding_mode": "floor"},
    "div:trunc_rounding": {"rounding_mode": "trunc"},
}
NUMBERS = (0.0, -0.0, 1, -1, 2, 3, 0.5, -0.5, 2.5, -3, 1e-30, INF, -INF, NAN)
# With a number at one side.
WITH_NUMBERS: dict[str, Call] = {
    "add": lambda x, n: x + n,
    "sub": lambda x, n: x - n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "rdiv": lambda x, n: n / x,
    "pow": lambda x, n: x**n,
    "rpow": lambda x, n: n**x,
    "floor_divide": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "fmod": torch.fmod,
    "xlogy": torch.xlogy,
    "copysign": torch.copysign,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "lt": torch.lt,
    "eq": torch.eq,
    "heaviside": lambda x, n: torch.heaviside(x, torch.tensor(n, dtype=x.dtype)),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "float_power": torch.float_power,
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "threshold": lambda x, n: F.threshold(x, n, 7.0),
    "elu": lambda x, n: F.elu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
}
POINTWISE: dict[str, Call] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "celu": lambda x: F.celu(x, 0.5),
    "softplus": lambda x: F.softplus(x, 2.0, 10.0),
    "glu": lambda x: F.glu(torch.cat([x, x.flip(0)])),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
    "logit": lambda x: torch.logit(x, 1e-3),
    "clamp": lambda x: x.clamp(-1.0, 3.0),
    "clamp upside down": lambda x: x.clamp(3.0, -1.0),
    "clamp nan": lambda x: x.clamp(NAN, 3.0),
    "nan_to_num": torch.nan_to_num,
    "nan_to_num numbers": lambda x: torch.nan_to_num(x, 1.5, 2.5, -3.5),
    "round up": lambda x: x.round(decimals=2),
    "round down": lambda x: x.round(decimals=-1),
    "entr": special.entr,
    "sinc": torch.sinc,
    "log_ndtr": special.log_ndtr,
    "frexp": torch.frexp,
    "isposinf": torch.isposinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "to int": lambda x: x.clamp(-100, 100).nan_to_num().int(),
    "to float": lambda x: x.float(),
    "to half": lambda x: x.half(),
    "to bfloat16": lambda x: x.bfloat16(),
    "to double": lambda x: x.double(),
    "to bool": lambda x: x.bool(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "histc": lambda x: torch.histc(x.nan_to_num(0, 9, -9), 5, -2, 3),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0, INF], dtype=x.dtype)),
    "bucketize right": lambda x: torch.bucketize(
        x, torch.tensor([-1.0, 0.0, 2.0], dtype=x.dtype), right=True
    ),
    "sort": lambda x: x.sort(stable=True),
    "msort": torch.msort,
    "cumulative": lambda x: (x.cummax(0), x.cummin(0)),
    "polar": lambda x: torch.polar(x, x.flip(0)),
    "multigammaln": lambda x: torch.mvlgamma(x, 2),
    "log_sigmoid": F.logsigmoid,
    "huge power": lambda x: x.square().sqrt(),
    "silu": F.silu,
    "mish": F.mish,
    "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "sgn": torch.sgn,
    "expm1": torch.expm1,
    "searchsorted": lambda x: torch.searchsorted(x.new_tensor([-1.0, 0.0, INF]), x),
}
OF_TWO: dict[str, Call] = {
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp to the end": lambda x, y: torch.lerp(x, y, 1.0),
    "lerp beyond": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp tensor": lambda x, y: torch.lerp(x, y, y),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "addcdiv value": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addcmul value": lambda x, y: torch.addcmul(x, x, y, value=0.1),
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
    "clamp tensors": lambda x, y: x.clamp(y, y.flip(0)),
    "isclose": torch.isclose,
    "isclose nan": lambda x, y: torch.isclose(x, y, equal_nan=True),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "complex": torch.complex,
    "angle": lambda x, y: torch.angle(torch.complex(x.float(), y.float())),
    "abs of complex": lambda x, y: torch.complex(x.float(), y.float()).abs(),
    "xlog1py": special.xlog1py,
    "where": lambda x, y: torch.where(x > y, x, y),
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0),
    "foreach add": lambda x, y: torch._foreach_add([x, y], [y, x]),
    "prelu": lambda x, y: F.prelu(x[:, None], y[:1]),
    "foreach lerp": lambda x, y: torch._foreach_lerp([x], [y], 0.3),
    "foreach addcdiv": lambda x, y: torch._foreach_addcdiv([x], [x], [y], 0.5),
    "foreach pow": lambda x, y: torch._foreach_pow([x], [y]),
    "foreach clamp": lambda x, y: torch._foreach_clamp_min([x], [y]),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
}
REDUCTIONS: dict[str, Call] = {
    "sum": lambda x: x.sum(1),
    "sum all": torch.sum,
    "mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "var": lambda x: x.var(1),
    "var 0": lambda x: x.var(1, correction=0),
    "var 2": lambda x: x.var(1, correction=2),
    "var too few": lambda x: x.var(1, correction=5),
    "var of one": lambda x: x[:, :1].var(1),
    "var all": torch.var,
    "std": lambda x: x.std(1),
    "std all": torch.std,
    "std_mean": lambda x: torch.std_mean(x, 1),
    "var half": lambda x: x.var(1, correction=0.5),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "safe softmax": lambda x: aten._safe_softmax(x, 1),
    "softmin": lambda x: F.softmin(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(1),
    "median": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(1)[0],
    "quantile": lambda x: x.float().quantile(0.3, 1),
    "nanquantile": lambda x: x.float().nanquantile(0.3, 1),
    "sort": lambda x: x.sort(dim=1, stable=True),
    "topk": lambda x: x.topk(4, 1)[0],
    "kthvalue": lambda x: x.kthvalue(2, 1)[0] + 0.0,
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    **{
        f"norm {p}": functools.partial(lambda x, p: torch.linalg.vector_norm(x, p, 1), p=p)
        for p in (0, 0.5, 1, 2, 3, -1, -2, INF, -INF)
    },
    "normalize": lambda x: F.normalize(x, dim=1),
    "normalize 1": lambda x: F.normalize(x, 1.0, 1),
    "layer_norm": lambda x: F.layer_norm(x, [4]),
    "rms_norm": lambda x: F.rms_norm(x, [4]),
    "layer_norm weights": lambda x: F.layer_norm(x, [4], x.new_ones(4), x.new_zeros(4), 1e-12),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "local_response_norm": lambda x: F.local_response_norm(x[None], 2),
    "diff": lambda x: x.diff(dim=1),
    "trapezoid": lambda x: torch.trapezoid(x, dim=1),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "avg_pool": lambda x: F.avg_pool1d(x, 2),
    "lp_pool": lambda x: F.lp_pool1d(x, 2.0, 2),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x, 3),
    "adaptive max": lambda x: F.adaptive_max_pool1d(x, 3),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=1.7, mode="linear"),
    "bicubic": lambda x: F.interpolate(x[None, None].float(), scale_factor=1.7, mode="bicubic"),
    "bilinear aa": lambda x: F.interpolate(
        x.nan_to_num(0, 1, -1)[None, None].clamp(-9, 9), (9, 3), mode="bilinear", antialias=True
    ),
    "pixel": lambda x: F.pixel_unshuffle(x[None], 2),
    "pdist": lambda x: F.pdist(x.float()),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x)) % 4, reduction="none"),
    "cross_entropy smooth": lambda x: F.cross_entropy(
        x, torch.arange(len(x)) % 4, reduction="none", label_smoothing=0.1
    ),
    "nll_loss": lambda x: F.nll_loss(x, torch.arange(len(x)) % 4, reduction="none"),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.arange(len(x)) % 4, reduction="none"),
    "embedding_bag": lambda x: F.embedding_bag(torch.arange(len(x))[None], x, mode="max"),
    "embedding_bag mean": lambda x: F.embedding_bag(torch.arange(4)[:, None], x, mode="mean"),
    "index_add": lambda x: x.index_add(0, torch.arange(len(x)), x),
    "scatter_reduce": lambda x: x.scatter_reduce(1, torch.zeros(len(x), 4, dtype=torch.int64), x, "amax"),
    "scatter mean": lambda x: x.scatter_reduce(1, torch.zeros(len(x), 4, dtype=torch.int64), x, "mean"),
    "scatter prod": lambda x: x.scatter_reduce(
        1, torch.zeros(len(x), 4, dtype=torch.int64), x, "prod", include_self=False
    ),
    "foreach_norm": lambda x: torch._foreach_norm(list(x.unbind(0))),
    "foreach max": lambda x: [most + 0.0 for most in torch._foreach_max(list(x.unbind(0)))],
    "foreach_norm inf": lambda x: torch._foreach_norm(list(x.unbind(0)), INF),
    "isin": lambda x: torch.isin(x, x[:8, 0]),
    "masked softmax": lambda x: x.masked_fill(x < 0, -INF).softmax(1),
    "grid_sample": lambda x: _sampled(x.float()),
    "grid border": lambda x: _sampled(x.float(), padding_mode="border"),
    "unique": lambda x: x[:, 0].sort()[0],
    "grid reflection": lambda x: _sampled(x.float(), padding_mode="reflection"),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 0.1, 3, 0, 255),
    "fake_quantize channels": lambda x: torch.fake_quantize_per_channel_affine(
        x.t().float().clamp(-1e3, 1e3),
        torch.full((len(x),), 0.1),
        torch.zeros(len(x), dtype=torch.int32),
        1,
        -8,
        7,
    ),
}
OF_GROUPS: dict[str, Call] = {
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "batch_norm eval": lambda x: F.batch_norm(x.t(), x[:, 0].clone(), x[:, 1].abs()),
    "instance_norm": lambda x: F.instance_norm(x[None]),
}
OF_TWO_ROWS: dict[str, Call] = {
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y),
    "pairwise_distance": F.pairwise_distance,
    "pairwise_distance 1": lambda x, y: F.pairwise_distance(x, y, 1.0, 0.0),
    "dist": lambda x, y: (x - y).norm(dim=1),
    **{
        f"cdist {p}": functools.partial(
            lambda x, y, p: torch.cdist(x[:, None].float(), y[:, None].float(), p), p=p
        )
        for p in (0.0, 0.5, 1.0, 2.0, 3.0, INF)
    },
    "cosine_embedding": lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(len(x)), reduction="none"),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, y.flip(0), reduction="none"),
}
LOSSES: dict[str, Call] = {
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "smooth_l1 beta 0": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.5),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign(), reduction="none"),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign(), reduction="none"),
    "margin_ranking": lambda x, y: F.margin_ranking_loss(x, y, y.sign(), reduction="none"),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "bce pos_weight": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y, reduction="none", pos_weight=y.new_full((1,), 3.0)
    ),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_div log": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y, full=True, reduction="none"),
    "poisson linear": lambda x, y: F.poisson_nll_loss(x, y, log_input=False, reduction="none"),
}
OF_PROBABILITIES: dict[str, Call] = {
    "bce": lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x.log(), y, reduction="none"),
    "bce mean": lambda x, y: F.binary_cross_entropy(x, y),
    "entropy": lambda x, y: -(x * x.log()) - torch.xlogy(y, x),
}
DIFFERENTIABLE = (
    *(
        "hardswish",
        "leaky_relu",
        "logaddexp2",
        "gelu",
        "gelu tanh",
        "celu",
        "softplus",
        "glu",
        "hardtanh",
        "hardshrink",
        "softshrink",
        "prelu",
        "logit",
    ),
    *("clamp", "nan_to_num", "entr", "sinc", "log_ndtr", "log_sigmoid", "silu", "mish", "expm1"),
    *(
        "lerp",
        "addcdiv",
        "addcmul",
        "logaddexp",
        "xlog1py",
        "fmax",
        "clamp tensors",
        "mse",
        "smooth_l1",
        "huber",
    ),
    *(
        "smooth_l1 beta 0",
        "bce_with_logits",
        "kl_div",
        "poisson",
        "soft_margin",
        "bce",
        "sum",
        "mean",
        "prod",
    ),
    *(
        "amax",
        "var",
        "std",
        "logsumexp",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "norm 0",
    ),
    *(
        "norm 0.5",
        "norm 1",
        "norm 2",
        "norm 3",
        "norm inf",
        "normalize",
        "layer_norm",
        "rms_norm",
        "group_norm",
    ),
    *("batch_norm", "cross_entropy", "cross_entropy smooth", "nll_loss", "multi_margin", "cosine_similarity"),
    *("pairwise_distance", "cdist 1.0", "cdist 2.0", "cdist inf", "max_pool", "avg_pool", "adaptive max"),
    *(
        "scatter_reduce",
        "scatter mean",
        "renorm",
        "median",
        "cummax",
        "grid_sample",
        "interpolate",
        "bicubic",
    ),
)
GRADIENTS_OF_OPS = (
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "digamma",
        "erf",
        "erfc",
        "erfinv",
    ),
    *(
        "exp",
        "exp2",
        "i0",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logit",
        "reciprocal",
        "rsqrt",
        "sigmoid",
    ),
    *("sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "nn.functional.elu", "nn.functional.selu"),
    *("nn.functional.hardsigmoid", "nn.functional.relu6"),
    *(
        "nn.functional.softsign",
        "nn.functional.tanhshrink",
        "nn.functional.threshold",
        "special.i0e",
        "special.i1",
    ),
    *(
        "special.i1e",
        "special.ndtri",
        "special.erfcx",
        "sgn",
        "sign",
        "atan2",
        "div:no_rounding_mode",
        "hypot",
    ),
    *("pow", "float_power", "maximum", "minimum", "xlogy", "copysign", "fmod", "remainder", "mul", "ldexp"),
    *("max:binary", "true_divide"),
)


def _sampled(x: Tensor, **options: Any) -> Tensor:
    """An image of plain numbers, looked at where the rows say."""
    image = torch.arange(20.0).reshape(1, 1, 4, 5)
    return F.grid_sample(image, x.reshape(1, -1, 4, 2)[:, :, :2], align_corners=False, **options)


def rows() -> dict[str, Row]:
    """All rows by name."""
    found = {row.name: row for row in from_table()}

    def add(calls: dict[str, Call], make: Make, prefix: str, **given: Any) -> None:
        for name, call in calls.items():
            full = f"{prefix} {name}"
            options = {"dtypes": DTYPES.get(full, FLOATS), "size": SIZES.get(full, 0.0), **given}
            found[full] = Row(full, call, make, **options)
            if name in DIFFERENTIABLE:
                found[f"{full} gradient"] = Row(
                    f"{full} gradient",
                    gradient(call, 1 if prefix.startswith("loss") else 2),
                    make,
                    DTYPES.get(f"{full} gradient", DTYPES.get(full, (f32, f64, bf16))),
                    16.0,
                    SIZES.get(f"{full} gradient", options["size"]),
                )

    for name, call in WITH_NUMBERS.items():
        for number in NUMBERS:
            full = f"number {name} {number}"
            made = functools.partial(_with_number, call, number)
            floats = _SINGLE if name == "add with alpha" else FLOATS
            found[full] = Row(full, made, divisible, (*floats, torch.int64, torch.int8))
    add(POINTWISE, line, "point")
    add(OF_TWO, pairs, "pair")
    add(REDUCTIONS, matrix, "rows", ulps=16.0)
    add(OF_GROUPS, moderate, "rows", ulps=64.0, size=1.0)
    add(OF_TWO_ROWS, two_matrices, "two rows", ulps=16.0)
    add(LOSSES, pairs, "loss", ulps=16.0)
    add(OF_PROBABILITIES, probabilities, "loss of probabilities", ulps=16.0, size=1.0)
    for name in GRADIENTS_OF_OPS:
        row = found[name]
        full = f"{name} gradient"
        found[full] = Row(
            full, gradient(row.call), row.make, (f32, f64, bf16), 16.0, row.size, TRUTHS.get(full)
        )
    for n in range(5):
        found[f"polygamma {n}"] = Row(
            f"polygamma {n}",
            functools.partial(torch.polygamma, n),
            RIGHT,
            size=1.0,
            truth=TRUTHS.get(f"polygamma {n}"),
        )
    for name, ulps in RIGHT_OF_ZERO.items():
        full = f"{name} of positive numbers"
        found[full] = Row(full, found[name].call, positive, ulps=ulps, truth=TRUTHS[name], dtypes=(f32, f64))
    found["zeta"] = Row("zeta", lambda x: special.zeta(x, 2.5), RIGHT, (f32, f64))
    return found


def _with_number(call: Call, number: Any, x: Tensor) -> Any:
    return call(x, number)


def main(names: Sequence[str]) -> None:
    """Check the rows whose names begin so, all without."""
    total = Seen()
    for name, row in rows().items():
        if names and not name.startswith(tuple(names)):
            continue
        for dtype in row.dtypes:
            before = len(total.faults)
            try:
                check(row, dtype, total)
            except Exception as error:
                total.faults.append(f"{name} {dtype}: {type(error).__name__}: {str(error)[:200]}")
            print(*total.faults[before:], sep="\n", end="\n" if total.faults[before:] else "", flush=True)
    print(f"{total.checks} checks, {len(total.faults)} faults, {len(total.targets)} ATen ops")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
