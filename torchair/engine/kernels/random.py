"""Random numbers.

An op whose offset is `FROM_GENERATOR` uses torch's generator of its device, as its ATen op would. With a real
offset its numbers are Philox 4x32-10 of seed, offset and position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchair.core import dtypes
from torchair.core.kernel_params import Int, Ints
from torchair.engine.registry import Value, kernel
from torchair.ge.builder.random_state import FROM_GENERATOR
from torchair.ge.host import Host, is_symbol

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
# DropOutGenMask writes whole blocks of 128 bits.
_MASK_BITS, _MASK_BYTES = 128, 16


@kernel("StatelessRandomUniformV2")
def stateless_random_uniform(shape: Ints, key: Value, counter: Value, alg: Int, *, dtype, device):
    """Return uniform numbers in [0, 1)."""
    to = dtypes.to_torch(dtype)
    if _is_drawn(counter):
        return torch.rand(shape, dtype=to, device=device)
    return _uniform(shape, key, counter, to, device)


@kernel("StatelessRandomNormalV2")
def stateless_random_normal(shape: Ints, key: Value, counter: Value, alg: Int, *, dtype, device):
    """Return standard normal numbers."""
    to = dtypes.to_torch(dtype)
    if _is_drawn(counter):
        return torch.randn(shape, dtype=to, device=device)
    wide = torch.float64 if to == torch.float64 else torch.float32
    pair = _uniform([2, *shape], key, counter, wide, device)
    # Box-Muller; 1 - u is never 0.
    radius = (-2 * torch.log(1 - pair[0])).sqrt()
    return (radius * torch.cos(2 * math.pi * pair[1])).to(to)


@kernel("StatelessRandomUniformIntV2")
def stateless_random_uniform_int(
    shape: Ints, key: Value, counter: Value, alg: Int, minval: Host, maxval: Host, *, device
):
    """Return integers from minval to below maxval."""
    low, high = minval.items[0], maxval.items[0]
    if _is_drawn(counter):
        return torch.randint(low, high, shape, dtype=minval.dtype, device=device)
    unit = _uniform(shape, key, counter, torch.float64, device)
    return (unit * (high - low)).floor().to(minval.dtype) + low


@kernel("StatelessBernoulli")
def stateless_bernoulli(shape: Ints, prob: Value, seed: Value, offset: Value, *, dtype, device):
    """Return 1 with probability `prob` (one number, or one for each element), else 0."""
    to = dtypes.to_torch(dtype)
    if not _is_drawn(offset):
        wide = prob.dtype if isinstance(prob, torch.Tensor) else torch.float32
        limit = prob if isinstance(prob, torch.Tensor) else prob.items[0]
        return (_uniform(shape, seed, offset, wide, device) < limit).to(to)
    if isinstance(prob, torch.Tensor):
        return torch.bernoulli(prob.expand(shape)).to(to)
    return torch.bernoulli(torch.empty(shape, dtype=to, device=device), prob.items[0])


@kernel("StatelessDropOutGenMask")
def stateless_drop_out_gen_mask(
    shape: Ints, prob: Value, seed: Value, seed1: Value, offset: Value | None, *, device
):
    """Return one bit for each element, 1 with probability `prob`, in whole blocks of 128 bits."""
    count = math.prod(shape)
    mask_bits = stateless_bernoulli(shape, prob, seed, _offset_or_zero(offset), dtype=_UINT8, device=device)
    blocks = (count + _MASK_BITS - 1) // _MASK_BITS
    padded = torch.constant_pad_nd(mask_bits.reshape(-1), [0, blocks * _MASK_BITS - count])
    return (padded.view(-1, 8) << _bit_numbers(device)).sum(1, dtype=torch.uint8)


@kernel("DropOutDoMask")
def drop_out_do_mask(x, mask, keep_prob: Value):
    """Return x / keep_prob where the bit of the mask is 1, else 0."""
    bits = (mask.unsqueeze(1) >> _bit_numbers(mask.device)) & 1
    keep_mask = bits.reshape(-1).narrow(0, 0, x.numel()).reshape(x.shape).to(torch.bool)
    scale = keep_prob.items[0] if isinstance(keep_prob, Host) else keep_prob
    return torch.where(keep_mask, x / scale, 0).to(x.dtype)


@kernel("StatelessRandperm")
def stateless_randperm(n: Int, seed: Value, offset: Value, *, layout, dtype, device):
    """Return the numbers 0 … n - 1 in a random order."""
    to = dtypes.to_torch(dtype)
    if _is_drawn(offset):
        return torch.randperm(n, dtype=to, device=device)
    return _uniform([n], seed, offset, torch.float64, device).argsort().to(to)


@kernel("MultinomialWithReplacement")
def multinomial_with_replacement(x, seed: Value, offset: Value, *, numsamples, replacement):
    """Return `numsamples` positions of each row of `x`, by weight."""
    if _is_drawn(offset):
        return torch.multinomial(x, numsamples, replacement)
    weights = x.to(torch.float64)
    if replacement:
        unit = _uniform([*x.shape[:-1], numsamples], seed, offset, torch.float64, x.device)
        totals = weights.cumsum(-1)
        return torch.searchsorted(totals, unit * totals[..., -1:], right=True)
    # The first of exponential clocks whose rates are the weights.
    clocks = -torch.log(1 - _uniform(list(x.shape), seed, offset, torch.float64, x.device))
    return torch.where(weights > 0, clocks / weights, math.inf).argsort(-1)[..., :numsamples]


@kernel("StatelessRandomPoisson")
def stateless_random_poisson(shape: Ints, seed: Value, lam, *, dtype):
    """Return Poisson numbers of rate `lam`; `seed` holds seed and offset."""
    to = dtypes.to_torch(dtype)
    if _is_drawn(seed):
        return torch.poisson(lam.expand(shape)).to(to)
    parts = seed.items if isinstance(seed, Host) else seed.unbind()
    unit = _uniform(shape, _part(parts[0]), _part(parts[1]), torch.float64, lam.device)
    rate = lam.to(torch.float64).expand(shape)
    # The least k whose distribution function reaches the random number, by bisection.
    low, high = torch.full_like(rate, -1), rate + 12 * rate.sqrt() + 40
    for _ in range(40):
        middle = ((low + high) / 2).floor()
        reached = torch.special.gammaincc(middle + 1, rate) >= unit
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high.ceil().to(to)


_UINT8 = 4


def _part(part: torch.Tensor | int) -> Value:
    return part if isinstance(part, torch.Tensor) else Host(part)


def _offset_or_zero(offset: Value | None) -> Value:
    return Host(0) if offset is None else offset


def _is_drawn(offset: Value) -> bool:
    """Return whether the numbers come from torch's generator."""
    if not isinstance(offset, Host):
        return False
    last = offset.items[-1]
    return not is_symbol(last) and last == FROM_GENERATOR


def _bit_numbers(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _uniform(
    shape: Sequence[int], key: Value, counter: Value, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return uniform numbers in [0, 1) with as many bits as `dtype` holds exactly."""
    count = math.prod(shape)
    words = philox(count if dtype != torch.float64 else 2 * count, words_of(key, device), counter, device)
    if dtype == torch.float64:
        high, low = words.view(-1, 2).unbind(1)
        return (((high << 21) | (low >> 11)).to(dtype) * 2.0**-53).reshape(shape)
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    return ((words >> (32 - bits)).to(torch.float32) * 2.0**-bits).to(dtype).reshape(shape)


def philox(
    count: int, key: tuple[torch.Tensor, torch.Tensor], counter: Value, device: torch.device
) -> torch.Tensor:
    """Return `count` words of 32 bits (in int64). The counter of a block of four is (block, offset)."""
    blocks = torch.arange((count + 3) // 4, dtype=torch.int64, device=device)
    third, fourth = words_of(counter, device)
    c0, c1, c2, c3 = blocks & _WORD, blocks >> 32, third.expand_as(blocks), fourth.expand_as(blocks)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return torch.stack([c0, c1, c2, c3], 1).reshape(-1).narrow(0, 0, count)


def _product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return high and low word of a product of two words: it wraps in int64, but its bits are right."""
    product = a * b
    return (product >> 32) & _WORD, product & _WORD


def words_of(value: Value, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return low and high word of the last number of a value: a seed, an offset, or a counter [0, offset]."""
    number = value.to_tensor(device) if isinstance(value, Host) else value.to(device)
    last = number.to(torch.int64).reshape(-1)[-1]
    return last & _WORD, (last >> 32) & _WORD
