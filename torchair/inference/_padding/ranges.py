"""Compute samples of the results of an elementwise op from samples of its operands.

Samples of a tensor are the ends of a range and some numbers in it. An op that is monotone in each operand is
applied to them: the ends of the operands give the ends of the result. For other ops, only the finiteness of
results is known. Samples of a constant or of bools are complete, so every op is applied to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.inference._padding.padded_values import (
    POSITIONS,
    POSITIONS_AFTER,
    Samples,
    always,
    anything,
    constant_of,
    evaluated,
    is_finite,
    with_infinite,
)


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


MONOTONE = _words(
    "add sub rsub mul neg positive relu relu6 hardtanh clamp clamp_min clamp_max maximum minimum fmax fmin "
    "where masked_fill exp exp2 expm1 sigmoid tanh sinh erf erfc atan asinh softplus leaky_relu hardsigmoid "
    "floor ceil round trunc sign sgn abs square lt gt le ge nan_to_num addcmul copysign"
)
"""Ops that are monotone in each operand if the others are fixed; `abs` and `square` on each side of zero."""
FINITE = _words("sin cos gelu silu mish hardswish elu celu selu atan2 hypot sinc frac lerp threshold prelu")
"""Other ops with finite results for finite operands."""
DIVISIONS = {"div": "other", "floor_divide": "other", "reciprocal": "self"}
"""Ops that are monotone if the divisor does not change its sign."""
ABOVE = {"log": 0, "log2": 0, "log10": 0, "rsqrt": 0, "log1p": -1}
"""Ops that are monotone and finite above a number."""
ABOUT_ONE_NUMBER = _words("eq ne logical_not logical_and logical_or logical_xor isnan isinf isfinite")
"""Ops with bool results that depend on single numbers in a range."""


def made_of(
    name: str,
    call: Callable[..., Any],
    operands: Sequence[Samples],
    dtypes: Sequence[torch.dtype],
    to: torch.dtype,
    given: dict[str, Any],
) -> Samples:
    """Return samples of the results of an op; `given` are its arguments by name, tensors as samples."""
    is_complete = all(map(_is_complete, operands))
    are_positions = len(operands) > 1 and all(each in (POSITIONS, POSITIONS_AFTER) for each in operands)
    if not is_complete and not (are_positions and name in ("eq", "ne")):
        if name in ABOUT_ONE_NUMBER:
            return always(False, True)
        if not _is_monotone(name, given):
            is_known = name in FINITE or not (to.is_floating_point or to.is_complex)
            known = is_known and all(map(is_finite, operands))
            return anything(to) if known else with_infinite(anything(to))
        operands = [_with_zero(samples) for samples in operands]
    try:
        made = evaluated(call, operands, dtypes, to)
    except (RuntimeError, TypeError, NotImplementedError, ValueError, OverflowError):
        return with_infinite(anything(to))
    # Only samples larger than the numbers of a model overflow: assume that a model's numbers are finite.
    return made if is_complete or not all(map(is_finite, operands)) else _limited(made, to)


def _is_complete(samples: Samples) -> bool:
    is_number = constant_of(samples) is not None
    return is_number or all(isinstance(number, bool) for world in samples for number in world)


def _is_monotone(name: str, given: dict[str, Any]) -> bool:
    """Whether the op is monotone and finite for these operands."""
    if name in MONOTONE:
        return True
    if name in DIVISIONS:
        divisor = _numbers(given.get(DIVISIONS[name]))
        return all(number > 0 for number in divisor) or all(number < 0 for number in divisor)
    if name in ABOVE:
        return all(number > ABOVE[name] for number in _numbers(given["self"]))
    if name == "sqrt":
        return all(number >= 0 for number in _numbers(given["self"]))
    if name == "pow":
        base, exponent = given["self"], given["exponent"]
        is_power = isinstance(exponent, int | float) and exponent >= 0 and int(exponent) == exponent
        return is_power or all(number > 0 for number in _numbers(base))
    return False


def _numbers(given: Any) -> list[Any]:
    """Return the numbers in samples, or a number itself."""
    if not isinstance(given, tuple):
        return [given if isinstance(given, int | float) else math.nan]
    return [number for world in given for number in world]


def _with_zero(samples: Samples) -> Samples:
    """Add zero to samples on both sides of it, because ops may be monotone on each side only."""
    return tuple(
        (*world, 0) if 0 not in world and min(world) < 0 < max(world) else world for world in samples
    )


def _limited(samples: Samples, to: torch.dtype) -> Samples:
    if not to.is_floating_point:
        return samples
    limits = torch.finfo(to)
    return tuple(tuple(min(max(n, limits.min), limits.max) for n in world) for world in samples)
