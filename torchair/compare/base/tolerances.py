"""Measure the distance between actual and expected values, and define tolerances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.errors import BadOption, BadOptionType

Pair = tuple[float, float]
"""Relative and absolute tolerance."""

DEFAULTS: dict[torch.dtype, Pair] = {
    torch.float64: (1e-7, 1e-9),
    torch.complex128: (1e-7, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.float16: (5e-3, 1e-3),
    torch.bfloat16: (3e-2, 1e-2),
}
"""Errors that another order of the same sums can cause. Other dtypes (integers, bools) must be equal."""


@dataclass(frozen=True)
class Errors:
    """Difference between the actual and the expected value of one tensor."""

    max_absolute: float = 0.0
    max_relative: float = 0.0
    ulp: float = 0.0
    cosine: float = 1.0
    excess: float = 0.0  # the largest ratio of error to tolerance of an element; above 1 it is wrong
    differing: int = 0  # number of elements beyond tolerance
    elements: int = 0
    at: tuple[int, ...] = ()  # index of the worst element
    text: str = ""  # difference that is not numeric: type, dtype, shape, an exception

    @property
    def ok(self) -> bool:
        """Whether all elements are within tolerance."""
        return not self.text and self.excess <= 1

    def __str__(self) -> str:
        if self.text:
            return self.text
        numbers = f"absolute {self.max_absolute:.3g}, relative {self.max_relative:.3g}, {self.ulp:.3g} ulp"
        where = f", {self.differing} of {self.elements} beyond tolerance" if self.differing else ""
        return f"{numbers}, cosine {self.cosine:.6f}{where}"


EXACT = Errors()


def tolerances_of(given: Pair | Mapping[torch.dtype, Pair] | None) -> dict[torch.dtype, Pair]:
    """Return the default tolerances, updated with a pair for all floats or pairs by dtype."""
    if given is None:
        return dict(DEFAULTS)
    rows = given if isinstance(given, Mapping) else dict.fromkeys(DEFAULTS, given)
    for dtype, pair in rows.items():
        if not isinstance(dtype, torch.dtype):
            raise BadOptionType(
                "tolerances expects dtypes as keys",
                got=repr(dtype),
                next="pass {torch.float32: (1e-4, 1e-5)}",
            )
        if not _is_pair(pair):
            raise BadOption(
                f"the tolerance of {dtype} must be a pair of non-negative numbers",
                got=repr(pair),
                next="pass (relative, absolute), such as (1e-4, 1e-5)",
            )
    return {**DEFAULTS, **{dtype: (float(pair[0]), float(pair[1])) for dtype, pair in rows.items()}}


def _is_pair(pair: Any) -> bool:
    is_two = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
    return is_two and all(isinstance(n, int | float) and n >= 0 and math.isfinite(n) for n in pair)


@torch.no_grad()
def measure(got: Any, want: Any, tolerances: Mapping[torch.dtype, Pair], *, wider: bool = False) -> Errors:
    """Measure the errors of one value. `wider` means that the expected value was computed in double and may
    have another dtype.

    An element may differ by absolute + relative x (its size + the root mean square of all elements): if large
    terms cancel, the error of the sum is that of the terms. The huge numbers of a mask do not count.
    """
    if isinstance(got, list | tuple) and isinstance(want, list | tuple) and len(got) == len(want):
        pairs = zip(got, want, strict=True)
        return worst([measure(a, b, tolerances, wider=wider) for a, b in pairs])
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return _plain(got, want, tolerances)
    same_dtype = got.dtype == want.dtype or (wider and got.is_floating_point() == want.is_floating_point())
    if got.shape != want.shape or not same_dtype:
        return Errors(math.inf, math.inf, text=f"{spec(got)}, should be {spec(want)}", elements=want.numel())
    relative, absolute = tolerances.get(got.dtype, (0.0, 0.0))
    a, b = _as_double(got), _as_double(want)
    same = _same(got, want, a, b)
    if bool(same.all()):
        return Errors(elements=want.numel())
    return _distance(a, b, same, (relative, absolute), _epsilon(got.dtype))


def worst(errors: Sequence[Errors]) -> Errors:
    """Return the errors with the largest excess."""
    return max(errors, key=lambda one: (bool(one.text), one.excess, one.max_absolute), default=EXACT)


def _plain(got: Any, want: Any, tolerances: Mapping[torch.dtype, Pair]) -> Errors:
    """Compare numbers and other values that are not tensors."""
    if isinstance(got, float) and isinstance(want, float):
        # Most of these were elements of tensors, of which few are doubles.
        a, b = (torch.tensor(value, dtype=torch.float64) for value in (got, want))
        return measure(a, b, {torch.float64: tolerances.get(torch.float32, DEFAULTS[torch.float32])})
    is_same = type(got) is type(want) and (got is want or got == want)
    return EXACT if is_same else Errors(math.inf, math.inf, text=f"{spec(got)}, should be {spec(want)}")


def spec(value: Any) -> str:
    """Return dtype and shape of a tensor, or the value itself."""
    if not isinstance(value, torch.Tensor):
        return repr(value)[:60]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    """Return all values as doubles in host memory."""
    plain = tensor.detach()
    plain = plain.dequantize() if plain.is_quantized else plain
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    plain = plain.resolve_conj().resolve_neg().cpu()
    return torch.view_as_real(plain.to(torch.complex128)) if plain.is_complex() else plain.double()


def _same(got: torch.Tensor, want: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return which elements are equal; the doubles `a` and `b` cannot represent large integers."""
    if got.is_floating_point() or got.is_complex() or got.is_quantized or got.layout is not torch.strided:
        return (a == b) | (a.isnan() & b.isnan())
    return got.cpu() == want.cpu()


def _mean(size: torch.Tensor) -> float:
    """Return the root mean square, for squares that may exceed the range of a double."""
    largest = float(size.max())
    return largest * float((size / largest).square().mean().sqrt()) if largest else 0.0


FAR = 1e6
"""Maximum ratio of terms that cancelled to their sum."""


def _terms(a: torch.Tensor, b: torch.Tensor, size: torch.Tensor, same: torch.Tensor) -> float:
    """Return how large the terms of these sums may have been. Large numbers that occur more than once in both
    values are constants of a mask, not sums.
    """
    left = _mean(torch.maximum(a.abs(), b.abs()).nan_to_num(0.0, 0.0, 0.0)[~same])
    values, counts = torch.unique(b[same], return_counts=True)
    is_mask = same & torch.isin(b, values[counts > 1]) & (size > left)
    return min(_mean(size[~is_mask]), FAR * left)


def _distance(
    a: torch.Tensor, b: torch.Tensor, same: torch.Tensor, tolerance: Pair, epsilon: float
) -> Errors:
    relative, absolute = tolerance
    # A NaN or an infinity on only one side is the largest possible error; integers differ by at least one.
    off = torch.where(same, 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf, math.inf)
    off = off if epsilon else torch.where(same, 0.0, off.clamp_min(1.0))
    size = b.abs().nan_to_num(0.0, 0.0, 0.0)
    allowed = absolute + relative * (size + _terms(a, b, size, same))
    excess = torch.where(off == 0, 0.0, off / allowed)
    place = int(excess.argmax())
    # The mantissa of frexp is in [0.5, 1): the distance to the next number is half of epsilon.
    step = torch.ldexp(torch.full_like(size, epsilon), torch.frexp(size).exponent - 1)
    return Errors(
        float(off.max()),
        float(torch.where(off == 0, 0.0, off / size).max()),
        float((off / step.clamp_min(5e-324)).max()) if epsilon else 0.0,
        _cosine(a, b),
        float(excess.flatten()[place]),
        int((excess > 1).sum()),
        b.numel(),
        tuple(int(n) for n in torch.unravel_index(torch.tensor(place), b.shape)),
    )


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.flatten(), b.flatten()
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length and math.isfinite(length) else math.nan


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
