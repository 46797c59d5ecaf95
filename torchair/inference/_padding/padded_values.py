"""Values of tensors in a graph with padded inputs: where the padding is, and which numbers may occur.

A dimension is a product of factors: numbers, and `Padded` for the size that is padded. Merged dimensions
have the factors of both, so views can be followed. In each padded factor, the elements before the unpadded
size are *real*: the same as in an unpadded call. The elements after them are its *tail*.

The numbers in the real elements, and in each tail (with all other factors at a real index), are described by
samples: the ends of a range, and numbers in it. `ranges.py` computes the samples of results. If all samples
of a result are the same number, the result is that number: zero times any finite number is zero. Positions
(`arange`) depend on the size of a call, so there are samples of several worlds, each with its own size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Numbers = tuple[Any, ...]
Samples = tuple[Numbers, ...]
"""Numbers that may occur, for each world."""

WORLDS = 3
POSITIONS: Samples = ((0, 1), (0, 5, 999), (0, 7, 10**6 - 1))
POSITIONS_AFTER: Samples = ((2, 3), (1000, 1001, 1999), (10**6, 10**6 + 1, 2 * 10**6))
FLOATS: Numbers = (-1e30, -1e4, -2.5, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 2.5, 1e4, 1e30)
INTS: Numbers = (-(2**40), -1000, -7, -1, 0, 1, 2, 5, 1000, 2**40)
BOOLS: Numbers = (False, True)
KEPT = 12  # maximum number of samples of a world
TRIED = 4096  # maximum number of combinations of samples of an op's operands


def always(*numbers: Any) -> Samples:
    """Return samples that are the same in every world."""
    return (numbers,) * WORLDS


def anything(dtype: torch.dtype) -> Samples:
    """Return samples of arbitrary finite numbers."""
    if dtype is torch.bool:
        return always(*BOOLS)
    if dtype.is_complex:
        return always(*FLOATS)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    numbers = FLOATS if dtype.is_floating_point else INTS
    known = {number for number in numbers if limits.min <= number <= limits.max}
    return always(*sorted({*known, limits.min, limits.max}))


def with_infinite(samples: Samples) -> Samples:
    """Add infinities and NaN to samples, except for bools and integers."""
    is_whole = all(isinstance(number, int) for world in samples for number in world)
    return samples if is_whole else tuple((*world, -math.inf, math.inf, math.nan) for world in samples)


def is_finite(samples: Samples) -> bool:
    """Return whether no number is infinite or NaN."""
    return all(math.isfinite(number) for world in samples for number in world)


def of_sign(samples: Samples, dtype: torch.dtype, is_magnitude: bool = False) -> Samples:
    """Return samples of sums of these numbers, or of norms."""
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if is_magnitude:
        return always(0, 1, limits.max)
    return tuple(
        _thinned([*world, *(limits.max for n in world if n > 0), *(limits.min for n in world if n < 0)])
        for world in samples
    )


def merged(*several: Samples) -> Samples:
    """Return samples of what may be any of these."""
    return tuple(_thinned(list(itertools.chain(*numbers))) for numbers in zip(*several, strict=True))


def constant_of(samples: Samples) -> Any:
    """Return the one number that these samples are; None where they differ."""
    numbers = {number for world in samples for number in world}
    return numbers.pop() if len(numbers) == 1 else None


def are_at_most(samples: Samples, others: Samples) -> bool:
    """Return whether no number of `samples` is above one of `others` in the same world, but for NaN."""
    pairs = zip(samples, others, strict=True)
    return all(a <= b or b != b for mine, theirs in pairs for a in mine for b in theirs)


def _thinned(numbers: Sequence[Any]) -> Numbers:
    """Return at most `KEPT` of these numbers, including the smallest and the largest."""
    odd = [math.nan] if any(number != number for number in numbers) else []
    known = sorted({number for number in numbers if number == number})
    if len(known) > KEPT:
        step = (len(known) - 1) / (KEPT - 1)
        known = [known[round(at * step)] for at in range(KEPT)]
    return (*known, *odd)


@dataclass(frozen=True)
class Padded:
    """The padded size as a factor of a dimension."""

    tail: Samples


Factor = int | Padded
Dim = tuple[Factor, ...]
"""Adjacent numbers are merged into one, and 1 is omitted."""


@dataclass(frozen=True)
class Value:
    """The factors of a tensor's dimensions, and samples of its elements."""

    dims: tuple[Dim, ...]
    real: Samples

    @property
    def is_padded(self) -> bool:
        """Whether a dimension is padded."""
        return any(map(has_padding, self.dims))

    def tails(self) -> list[Samples]:
        """Return the tail of each padded factor, in order."""
        return [factor.tail for dim in self.dims for factor in dim if isinstance(factor, Padded)]

    def with_tails(self, change: Callable[[Samples], Samples], real: Samples) -> Value:
        """Return the value with other contents."""
        return Value(tuple(with_tail(dim, change) for dim in self.dims), real)


def has_padding(dim: Dim) -> bool:
    """Whether the padded size is a factor of a dimension."""
    return any(isinstance(factor, Padded) for factor in dim)


def with_tail(dim: Dim, change: Callable[[Samples], Samples]) -> Dim:
    """Return the dimension with other contents of its tails."""
    return tuple(replace(f, tail=change(f.tail)) if isinstance(f, Padded) else f for f in dim)


def joined(factors: Sequence[Factor]) -> Dim:
    """Return factors as a dimension."""
    made: list[Factor] = []
    for factor in factors:
        if factor == 1:
            continue
        last = made[-1] if made else None
        if isinstance(factor, int) and isinstance(last, int):
            made[-1] = last * factor
        else:
            made.append(factor)
    return tuple(made)


def form_of(dim: Dim) -> tuple[int | None, ...]:
    """Return the factors without the contents of tails."""
    return tuple(None if isinstance(factor, Padded) else factor for factor in dim)


def regrouped(dims: Sequence[Dim], sizes: Sequence[tuple[int, int]]) -> tuple[Dim, ...] | None:
    """Return the dimensions of a view with sizes `c * size**p`; None if it would split a padded factor."""
    left: list[Factor] = [factor for dim in dims for factor in dim]
    found = [_taken(left, *size) for size in sizes]
    known = [dim for dim in found if dim is not None]
    return tuple(known) if len(known) == len(found) and not left else None


def _taken(left: list[Factor], number: int, power: int) -> Dim | None:
    taken: list[Factor] = []
    while number != 1 or power:
        if not left:
            return None
        factor = left.pop(0)
        if isinstance(factor, Padded):
            if not power:
                return None
            power -= 1
        elif factor and number % factor == 0:
            number //= factor
        elif number and factor % number == 0 and not power:
            left.insert(0, factor // number)
            factor, number = number, 1
        else:
            return None
        taken.append(factor)
    return joined(taken)


def evaluated(
    call: Callable[..., Any], operands: Sequence[Samples], dtypes: Sequence[torch.dtype], to: torch.dtype
) -> Samples:
    """Apply an elementwise op to samples of its operands."""
    return tuple(_in_a_world(call, numbers, dtypes, to) for numbers in zip(*operands, strict=True))


def _in_a_world(
    call: Callable[..., Any], numbers: Sequence[Numbers], dtypes: Sequence[torch.dtype], to: torch.dtype
) -> Numbers:
    if to.is_complex or any(dtype.is_complex for dtype in dtypes) or math.prod(map(len, numbers)) > TRIED:
        return anything(to)[0]
    columns = list(zip(*itertools.product(*numbers), strict=True))
    tensors = [torch.tensor(each, dtype=wide(dtype)) for each, dtype in zip(columns, dtypes, strict=True)]
    found = call(*tensors)
    if not isinstance(found, torch.Tensor) or found.shape != tensors[0].shape:
        return anything(to)[0]
    if not to.is_floating_point and to is not torch.bool:
        found = found.to(to)  # integers may wrap
    return _thinned(found.tolist())


def converted(samples: Samples, dtype: torch.dtype, to: torch.dtype) -> Samples:
    """Return the same numbers in another dtype."""
    if dtype is to or (dtype.is_floating_point and to.is_floating_point):
        return samples
    return evaluated(lambda x: x.to(wide(to)), [samples], [dtype], to)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that samples are computed in."""
    if dtype is torch.bool:
        return dtype
    return torch.float64 if dtype.is_floating_point else torch.int64


def padded_factors(value: Value) -> Iterator[tuple[int, int]]:
    """Yield the dimension of each padded factor, and its index in the dimension."""
    for at, dim in enumerate(value.dims):
        for place, factor in enumerate(dim):
            if isinstance(factor, Padded):
                yield at, place
