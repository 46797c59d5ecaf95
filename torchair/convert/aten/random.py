"""ATen's random ops: Stateless ops of the IR with the graph's random state, and transforms of their numbers.

An op with an explicit generator object becomes an opaque op: no graph can hold that object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchair import ge
from torchair.convert.aten.matmul import scaled
from torchair.convert.base.operands import BOOL, FLOAT, INT64, cast, pack, promote, shape_of
from torchair.convert.base.registry import converter
from torchair.ge.builder.random_state import random_state
from torchair.ge.graph import Tensor

aten = torch.ops.aten

DOUBLE = ge.DataType.DT_DOUBLE
UINT64 = ge.DataType.DT_UINT64
_PHILOX = 1
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def default_generator(*args: Any, generator: Any = None, pin_memory: Any = None, **kwargs: Any) -> str | None:
    """Return why a call is declined: converters here support only the default generator of a device."""
    if any(isinstance(arg, torch.Generator) for arg in (generator, *args)):
        return "it uses a generator object"
    return "its result is in pinned memory" if pin_memory else None


def _real(spec: Any) -> int:
    """Return the data type of random numbers; torch's other types have no random ops in the IR."""
    if spec.torch_dtype not in _REAL:
        raise NotImplementedError(f"no IR op generates numbers of {spec.torch_dtype}")
    return spec.dtype


def _on_device(made: Tensor, spec: Any) -> Tensor:
    """Set the device of an op that reads no tensor to that of the FX node."""
    meta = made.meta
    if isinstance(meta, torch.Tensor) and meta.device != spec.device:
        made.meta = meta.to(spec.device)
    return made


def _key_and_counter(spec: Any) -> tuple[Tensor, Tensor]:
    seed, offset = random_state(spec.device)
    key = ge.Cast(ge.Reshape(seed, [1]), dst_type=UINT64)
    return key, ge.Cast(pack([0, offset]), dst_type=UINT64)


def _draw(op: Callable[..., Tensor], shape: Any, spec: Any, dtype: int) -> Tensor:
    key, counter = _key_and_counter(spec)
    return _on_device(op(_sizes(shape), key, counter, cast(_PHILOX, ge.DataType.DT_INT32), dtype=dtype), spec)


def _sizes(shape: Any) -> Tensor:
    return shape if isinstance(shape, Tensor) else ge.Const(list(shape), dtype=INT64)


def _affine(x: Tensor, scale: Any, shift: Any, dtype: int) -> Tensor:
    """Return x · scale + shift, in at least 32 bits."""
    wide = DOUBLE if dtype == DOUBLE else FLOAT
    x = cast(x, wide)
    if not (isinstance(scale, int | float) and scale == 1):
        x = ge.Mul(x, cast(scale, wide))
    if not (isinstance(shift, int | float) and shift == 0):
        x = ge.Add(x, cast(shift, wide))
    return cast(x, dtype)


@converter(aten.rand.default, aten.rand.generator, only=default_generator)
def rand(size, *, meta_outputs, **_):
    """Return uniform numbers in [0, 1)."""
    return _draw(ge.StatelessRandomUniformV2, size, meta_outputs, _real(meta_outputs))


@converter(aten.randn.default, aten.randn.generator, only=default_generator)
def randn(size, *, meta_outputs, **_):
    """Return standard normal numbers."""
    return _draw(ge.StatelessRandomNormalV2, size, meta_outputs, _real(meta_outputs))


@converter(aten.rand_like.default, only=default_generator)
def rand_like(self, *, meta_outputs, **_):
    """Return uniform numbers in [0, 1) with the sizes of another tensor."""
    return rand(shape_of(self), meta_outputs=meta_outputs)


@converter(aten.randn_like.default, only=default_generator)
def randn_like(self, *, meta_outputs, **_):
    """Return standard normal numbers with the sizes of another tensor."""
    return randn(shape_of(self), meta_outputs=meta_outputs)


@converter(aten.uniform.default, only=default_generator)
def uniform(self, *interval, meta_outputs, generator=None, **named):
    """Return uniform numbers between two bounds."""
    low, high = _pair(interval, named, ("from", "to"), (0.0, 1.0))
    unit = rand(shape_of(self), meta_outputs=meta_outputs)
    return _affine(unit, high - low, low, meta_outputs.dtype)


def _pair(
    given: tuple[Any, ...], named: dict[str, Any], names: tuple[str, str], default: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return two numbers that are passed by position, by name (one is a Python keyword) or not at all."""
    listed = [*given, *(None,) * (2 - len(given))]
    first, second = (
        named.get(name, missing) if value is None else value
        for value, name, missing in zip(listed, names, default, strict=True)
    )
    return first, second


@converter(aten.normal_functional.default, only=default_generator)
def normal_functional(self, mean=0.0, std=1.0, *, generator=None, meta_outputs):
    """Return normal numbers with the sizes of another tensor."""
    return _affine(randn(shape_of(self), meta_outputs=meta_outputs), std, mean, meta_outputs.dtype)


@converter(aten.normal.float_float, only=default_generator)
def normal_of_size(mean, std, size, *, meta_outputs, **_):
    """Return normal numbers."""
    return _affine(randn(size, meta_outputs=meta_outputs), std, mean, meta_outputs.dtype)


@converter(
    aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, only=default_generator
)
def normal(mean=0.0, std=1.0, *, generator=None, meta_outputs):
    """Return normal numbers with mean and deviation for each element."""
    tensors = [part for part in (mean, std) if isinstance(part, Tensor)]
    like = tensors[0]
    if len(tensors) == 2 and len({str(part.symsize) for part in tensors}) == 2:
        like = ge.Add(*(cast(part, meta_outputs.dtype) for part in tensors))  # only for the size of both
    shape = shape_of(like)
    return _affine(randn(shape, meta_outputs=meta_outputs), std, mean, meta_outputs.dtype)


@converter(aten.randint.default, aten.randint.generator, only=default_generator)
def randint(high, size, *, meta_outputs, **_):
    """Return integers below `high`."""
    return randint_from(0, high, size, meta_outputs=meta_outputs)


@converter(aten.randint.low, aten.randint.low_generator, only=default_generator)
def randint_from(low, high, size, *, meta_outputs, **_):
    """Return integers from `low` to below `high`."""
    key, counter = _key_and_counter(meta_outputs)
    bounds = promote(low, high, to=INT64)
    alg = cast(_PHILOX, ge.DataType.DT_INT32)
    result = ge.StatelessRandomUniformIntV2(_sizes(size), key, counter, alg, *bounds)
    return cast(_on_device(result, meta_outputs), meta_outputs.dtype)


@converter(aten.randint_like.default, aten.randint_like.Tensor, only=default_generator)
def randint_like(self, high, *, meta_outputs, **_):
    """Return integers below `high` with the sizes of another tensor."""
    high = ge.Reshape(high, []) if isinstance(high, Tensor) and high.rank else high
    return randint_from(0, high, shape_of(self), meta_outputs=meta_outputs)


@converter(aten.randint_like.low_dtype, only=default_generator)
def randint_like_from(self, low, high, *, meta_outputs, **_):
    """Return integers from `low` to below `high` with the sizes of another tensor."""
    return randint_from(low, high, shape_of(self), meta_outputs=meta_outputs)


@converter(aten.random.to, only=default_generator)
def random_to(self, to, *, generator=None, meta_outputs):
    """Return integers in [0, to) with the sizes and dtype of another tensor."""
    return randint_from(0, to, shape_of(self), meta_outputs=meta_outputs)


@converter(aten.random.default, only=default_generator)
def random(self, *, generator=None, meta_outputs):
    """Return integers over the range that the dtype represents exactly."""
    dtype = meta_outputs.torch_dtype
    if dtype == torch.int64:
        raise NotImplementedError("the upper bound does not fit into INT64")
    if dtype == torch.bool:
        return randint_from(0, 2, shape_of(self), meta_outputs=meta_outputs)
    last = 2 / torch.finfo(dtype).eps if dtype.is_floating_point else torch.iinfo(dtype).max
    return randint_from(0, int(last) + 1, shape_of(self), meta_outputs=meta_outputs)


@converter(aten.randperm.default, aten.randperm.generator, only=default_generator)
def randperm(n, *, meta_outputs, **_):
    """Return the numbers 0 … n - 1 in a random order."""
    seed, offset = random_state(meta_outputs.device)
    result = ge.StatelessRandperm(cast(n, INT64), seed, offset, layout=1, dtype=meta_outputs.dtype)
    return _on_device(result, meta_outputs)


@converter(aten.multinomial.default, only=default_generator)
def multinomial(self, num_samples, replacement=False, *, generator=None, meta_outputs):
    """Return positions of each row, by weight."""
    if isinstance(num_samples, Tensor):
        raise NotImplementedError("the number of samples is symbolic, but it is an attribute")
    seed, offset = random_state(meta_outputs.device)
    return ge.MultinomialWithReplacement(
        self, seed, offset, numsamples=num_samples, replacement=bool(replacement)
    )


@converter(aten.poisson.default, only=default_generator)
def poisson(self, generator=None, *, meta_outputs):
    """Return Poisson numbers with rate `self`."""
    state = pack(random_state(meta_outputs.device))
    return ge.StatelessRandomPoisson(_sizes(shape_of(self)), state, self, dtype=meta_outputs.dtype)


def _bernoulli(shape: Any, prob: Any, device: torch.device, dtype: int) -> Tensor:
    seed, offset = random_state(device)
    return ge.StatelessBernoulli(_sizes(shape), prob, seed, offset, dtype=dtype)


@converter(aten.bernoulli.default, only=default_generator)
def bernoulli(self, *, generator=None, meta_outputs):
    """Return 1 with probability `self`, else 0."""
    return _bernoulli(shape_of(self), _chances(self), meta_outputs.device, meta_outputs.dtype)


def _chances(p: Tensor) -> Tensor:
    """Cast probabilities: the IR supports none in BF16."""
    return cast(p, FLOAT) if p.dtype == ge.DataType.DT_BF16 else p


@converter(aten.bernoulli.p, aten.bernoulli.Tensor, only=default_generator)
def bernoulli_of(self, p=0.5, *, generator=None, meta_outputs):
    """Return 1 with probability `p`, with the sizes and dtype of another tensor."""
    chances = _chances(p) if isinstance(p, Tensor) else cast(float(p), FLOAT)
    result = _bernoulli(shape_of(self), chances, meta_outputs.device, meta_outputs.dtype)
    return _on_device(result, meta_outputs)


@converter(aten.native_dropout.default)
def native_dropout(input, p, train=None, *, meta_outputs):
    """Keep each element with probability 1 - p and scale it; the mask is for the backward pass.

    A UINT8 mask means that the device's kernel packs the mask into bits.
    """
    spec, mask_spec = meta_outputs
    if train is False or p == 0:
        return ge.TensorMove(input), ge.Fill(shape_of(input), cast(True, BOOL))
    if p == 1:
        return ge.ZerosLike(input), ge.Fill(shape_of(input), cast(False, BOOL))
    keep = 1.0 - float(p)
    if mask_spec.torch_dtype == torch.uint8:
        seed, offset = random_state(spec.device)
        mask = ge.StatelessDropOutGenMask(
            _sizes(shape_of(input)), cast(keep, FLOAT), seed, cast(0, INT64), pack([0, offset])
        )
        mask = _on_device(mask, mask_spec)
        return ge.DropOutDoMask(input, mask, cast(keep, FLOAT)), mask
    keep_mask = _on_device(_bernoulli(shape_of(input), cast(keep, FLOAT), spec.device, BOOL), spec)
    return scaled(ge.Mul(input, cast(keep_mask, input.dtype)), 1.0 / keep), keep_mask


@converter(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output, mask, scale):
    """Return the scaled gradient of the kept elements."""
    if mask.dtype == ge.DataType.DT_UINT8:
        return ge.DropOutDoMask(grad_output, mask, cast(1.0 / scale, FLOAT))
    return scaled(ge.Mul(grad_output, cast(mask, grad_output.dtype)), float(scale))


def _wide(spec: Any) -> int:
    """Return the width in which torch transforms: 64 bits on the CPU, 32 elsewhere."""
    return DOUBLE if spec.device.type == "cpu" or spec.torch_dtype == torch.float64 else FLOAT


def _unit(self: Tensor, spec: Any) -> Tensor:
    """Return uniform numbers for a transform."""
    return _draw(ge.StatelessRandomUniformV2, shape_of(self), spec, _wide(spec))


@converter(aten.exponential.default, only=default_generator)
def exponential(self, lambd=1.0, *, generator=None, meta_outputs):
    """-log(1 - u) / lambd."""
    unit = _unit(self, meta_outputs)
    return cast(scaled(ge.Log1p(ge.Neg(unit)), -1.0 / lambd), meta_outputs.dtype)


@converter(aten.geometric.default, only=default_generator)
def geometric(self, p, *, generator=None, meta_outputs):
    """Return the number of trials until one succeeds: ⌈log(u) / log(1 - p)⌉."""
    unit = _unit(self, meta_outputs)
    if p == 1:
        return cast(ge.OnesLike(unit), meta_outputs.dtype)
    # The generator may return 0, which has no logarithm.
    above_zero = ge.Maximum(unit, cast(2.0**-24, unit.dtype))
    logs = ge.Log(above_zero)
    return cast(ge.Ceil(ge.RealDiv(logs, cast(math.log1p(-p), unit.dtype))), meta_outputs.dtype)


@converter(aten.cauchy.default, only=default_generator)
def cauchy(self, median=0.0, sigma=1.0, *, generator=None, meta_outputs):
    """median + sigma · tan(π (u - ½))."""
    unit = _unit(self, meta_outputs)
    angle = scaled(ge.Sub(unit, cast(0.5, unit.dtype)), math.pi)
    return cast(_affine(ge.Tan(angle), sigma, median, unit.dtype), meta_outputs.dtype)


@converter(aten.log_normal.default, only=default_generator)
def log_normal(self, mean=1.0, std=2.0, *, generator=None, meta_outputs):
    """Return e to the power of normal numbers."""
    drawn = _draw(ge.StatelessRandomNormalV2, shape_of(self), meta_outputs, _wide(meta_outputs))
    return cast(ge.Exp(_affine(drawn, std, mean, drawn.dtype)), meta_outputs.dtype)


@converter(aten.rrelu_with_noise_functional.default, only=default_generator)
def rrelu_with_noise_functional(
    self, noise, lower=0.125, upper=1.0 / 3, training=False, generator=None, *, meta_outputs
):
    """Scale negative numbers, in training each by its own random number, which is also returned."""
    spec = meta_outputs[0]
    negative = ge.LessEqual(self, cast(0, self.dtype))
    if not training:
        slope = scaled(self, (lower + upper) / 2)
        return ge.SelectV2(negative, slope, self), noise
    drawn = _affine(rand(shape_of(self), meta_outputs=spec), upper - lower, lower, spec.dtype)
    scales = ge.SelectV2(negative, drawn, cast(1.0, self.dtype))
    return ge.Mul(self, scales), scales
