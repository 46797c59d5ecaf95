"""ATen's special functions, as formulas of IR arithmetic.

The IR has `BesselI0e`, `BesselI1e`, `Igamma` and `Zeta`; everything else is computed from elementary
functions. The approximations are those of the Cephes library (and of S. G. Johnson's `erfcx`), which ATen's
CPU kernels use too; their coefficients are in `special.json`, highest power first (lowest for `erfcx`). Half
precision computes in float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torchair import ge
from torchair.convert.base.operands import INT64, cast, like, torch_dtype
from torchair.convert.base.registry import converter, map_one_to_one
from torchair.ge.graph import Tensor

aten, prims = torch.ops.aten, torch.ops.prims
INF, NAN = float("inf"), float("nan")
TABLES = json.loads((Path(__file__).parent / "special.json").read_text())

map_one_to_one({
    aten.special_zeta.default: ge.Zeta, aten.special_zeta.self_scalar: ge.Zeta,
    aten.special_zeta.other_scalar: ge.Zeta, prims.zeta.default: ge.Zeta,
    aten.special_xlog1py.default: ge.Xlog1py, aten.special_xlog1py.self_scalar: ge.Xlog1py,
    aten.special_xlog1py.other_scalar: ge.Xlog1py,
    prims.bessel_i0e.default: ge.BesselI0e, prims.bessel_i1e.default: ge.BesselI1e,
}, promoted=True)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Real:
    """A float tensor with Python's arithmetic, so that formulas read as formulas."""

    x: Tensor

    def __add__(self, other: Real | float) -> Real:
        return Real(ge.Add(self.x, _operand(other, self)))

    def __sub__(self, other: Real | float) -> Real:
        return Real(ge.Sub(self.x, _operand(other, self)))

    def __mul__(self, other: Real | float) -> Real:
        return Real(ge.Mul(self.x, _operand(other, self)))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(ge.RealDiv(self.x, _operand(other, self)))

    def __rsub__(self, number: float) -> Real:
        return Real(ge.Sub(_operand(number, self), self.x))

    def __rtruediv__(self, number: float) -> Real:
        return Real(ge.RealDiv(_operand(number, self), self.x))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Real:
        return Real(ge.Neg(self.x))

    def __lt__(self, other: Real | float) -> Tensor:
        return ge.Less(self.x, _operand(other, self))

    def __le__(self, other: Real | float) -> Tensor:
        return ge.LessEqual(self.x, _operand(other, self))

    def __gt__(self, other: Real | float) -> Tensor:
        return ge.Greater(self.x, _operand(other, self))

    def equals(self, other: Real | float) -> Tensor:
        return ge.Equal(self.x, _operand(other, self))


def _operand(value: Real | float, beside: Real) -> Tensor:
    return value.x if isinstance(value, Real) else like(float(value), beside.x)


def _elementary(op: Callable[..., Tensor]) -> Callable[[Real], Real]:
    return lambda x: Real(op(x.x))


exp, log, sqrt, sin, cos, tan = map(_elementary, (ge.Exp, ge.Log, ge.Sqrt, ge.Sin, ge.Cos, ge.Tan))
magnitude, round_, floor = map(_elementary, (ge.Abs, ge.Round, ge.Floor))
erfc, log1p = map(_elementary, (ge.Erfc, ge.Log1p))


def where(condition: Tensor, a: Real | float, b: Real) -> Real:
    """Select one value or the other, element by element."""
    return Real(ge.SelectV2(condition, _operand(a, b), b.x))


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """Evaluate a polynomial, highest power first."""
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def chebyshev(x: Real, coefficients: Sequence[float]) -> Real:
    """Evaluate a sum of Chebyshev polynomials by Clenshaw's recurrence."""
    before, last, value = 0.0, 0.0, x * 0.0 + coefficients[0]
    for coefficient in coefficients[1:]:
        before, last = last, value
        value = x * last - before + coefficient
    return (value - before) * 0.5


def function(*targets) -> Callable[[Callable[[Real], Real]], Callable[[Real], Real]]:
    """Declare the converter of a function of one number."""

    def declare(formula: Callable[[Real], Real]) -> Callable[[Real], Real]:
        def run(self, *, meta_outputs):
            return cast(formula(_real(self, meta_outputs.torch_dtype)).x, meta_outputs.dtype)

        converter(*targets)(run)
        return formula

    return declare


def _real(x, dtype) -> Real:
    return Real(cast(x, torch.float32 if dtype.itemsize == 2 else dtype))


@function(aten.i0.default, aten.special_modified_bessel_i0.default, prims.bessel_i0.default)
def i0(x: Real) -> Real:
    """Return the modified Bessel function of order 0: its scaled form times exp(|x|), which alone would
    overflow.
    """
    half = exp(magnitude(x) * 0.5)
    return Real(ge.BesselI0e(x.x)) * half * half


@function(aten.special_i1.default, aten.special_modified_bessel_i1.default, prims.bessel_i1.default)
def i1(x: Real) -> Real:
    """Return the modified Bessel function of order 1."""
    half = exp(magnitude(x) * 0.5)
    return Real(ge.BesselI1e(x.x)) * half * half


def _outside_of_positive(x: Real, at_zero: float, value: Real) -> Real:
    """Return a function of positive numbers with its limit at zero, and NaN below."""
    return where(x.equals(0.0), at_zero, where(x < 0.0, NAN, value))


def _k(order: int, is_scaled: bool) -> Callable[[Real], Real]:
    """Return a modified Bessel function of the second kind."""
    table = TABLES[f"k{order}"]

    def run(x: Real) -> Real:
        series = chebyshev(x * x - 2.0, table["A"])
        # Half of the smallest number is zero.
        logarithm = where(x < 1.0, log(x) - math.log(2.0), log(x * 0.5))
        near = series - logarithm * i0(x) if order == 0 else logarithm * i1(x) + series / x
        far = chebyshev(8.0 / x - 2.0, table["B"]) / sqrt(x)
        near, far = (near * exp(x), far) if is_scaled else (near, far * exp(-x))
        return _outside_of_positive(x, INF, where(x <= 2.0, near, far))

    return run


function(aten.special_modified_bessel_k0.default)(_k(0, is_scaled=False))
function(aten.special_modified_bessel_k1.default)(_k(1, is_scaled=False))
function(aten.special_scaled_modified_bessel_k0.default)(_k(0, is_scaled=True))
function(aten.special_scaled_modified_bessel_k1.default)(_k(1, is_scaled=True))


def _wave(x: Real, order: int, kind: str) -> Real:
    """Return J or Y of an order for x above 5: a decaying wave."""
    table, phase = TABLES[f"j{order}"], x - math.pi * (order + 0.5) / 2
    inverse = 5.0 / x
    square = inverse * inverse
    even = polynomial(square, table["PP"]) / polynomial(square, table["PQ"])
    odd = inverse * (polynomial(square, table["QP"]) / polynomial(square, table["QQ"]))
    wave = even * cos(phase) - odd * sin(phase) if kind == "j" else even * sin(phase) + odd * cos(phase)
    return wave * math.sqrt(2 / math.pi) / sqrt(x)


@function(aten.special_bessel_j0.default, prims.bessel_j0.default)
def j0(x: Real) -> Real:
    """Return the Bessel function of order 0."""
    table, x = TABLES["j0"], magnitude(x)
    square = x * x
    roots = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    near = roots * (polynomial(square, table["RP"]) / polynomial(square, table["RQ"]))
    near = where(x < 1e-5, 1.0 - square * 0.25, near)
    return where(x <= 5.0, near, _wave(x, 0, "j"))


@function(aten.special_bessel_j1.default, prims.bessel_j1.default)
def j1(x: Real) -> Real:
    """Return the Bessel function of order 1; it is odd."""
    table, right = TABLES["j1"], magnitude(x)
    square = right * right
    near = polynomial(square, table["RP"]) / polynomial(square, table["RQ"])
    near = near * x * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    far = _wave(right, 1, "j")
    return where(right <= 5.0, near, where(x < 0.0, -far, far))


@function(aten.special_bessel_y0.default)
def y0(x: Real) -> Real:
    """Return the Bessel function of the second kind of order 0."""
    table, square = TABLES["y0"], x * x
    near = polynomial(square, table["YP"]) / polynomial(square, table["YQ"])
    near = near + log(x) * j0(x) * (2 / math.pi)
    return _outside_of_positive(x, -INF, where(x <= 5.0, near, _wave(x, 0, "y")))


@function(aten.special_bessel_y1.default)
def y1(x: Real) -> Real:
    """Return the Bessel function of the second kind of order 1."""
    table, square = TABLES["y1"], x * x
    near = x * (polynomial(square, table["YP"]) / polynomial(square, table["YQ"]))
    near = near + (j1(x) * log(x) - 1.0 / x) * (2 / math.pi)
    return _outside_of_positive(x, -INF, where(x <= 5.0, near, _wave(x, 1, "y")))


@function(aten.special_spherical_bessel_j0.default, prims.spherical_bessel_j0.default)
def spherical_j0(x: Real) -> Real:
    """sin(x) / x, by its series near zero."""
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
    value = where(magnitude(x) < 0.5, polynomial(x * x, series), sin(x) / x)
    return where(ge.IsInf(x.x), 0.0, value)


@function(aten.special_airy_ai.default)
def airy_ai(x: Real) -> Real:
    """Return Airy's function: a wave on the left, a power series near zero, a decaying exponential on the
    right.
    """
    near = _airy_series(x)
    value = where(x < -2.09, _airy_wave(where(x < -2.09, x, x * 0.0 - 3.0)), near)
    value = where(x < 2.09, value, _airy_tail(where(x < 2.09, x * 0.0 + 3.0, x)))
    return where(ge.IsInf(x.x), NAN, where(x > 103.892, 0.0, value))


def _airy_series(x: Real) -> Real:
    """Return both solutions of y'' = x y, with the weights of Ai. Fifteen terms reach float64 for |x| below
    2.09.
    """
    even, odd = [1.0], [1.0]
    for k in range(1, 16):
        even.append(even[-1] / ((3 * k - 1) * (3 * k)))
        odd.append(odd[-1] / ((3 * k) * (3 * k + 1)))
    cube = x * x * x
    f, g = polynomial(cube, even[::-1]), x * polynomial(cube, odd[::-1])
    return f * 0.355028053887817239260 - g * 0.258819403792806798405


def _airy_wave(x: Real) -> Real:
    table, left = TABLES["airy"], -x
    angle = left * 2.0 * sqrt(left) / 3.0
    z = 1.0 / angle
    square, phase = z * z, angle + math.pi / 4
    even = square * polynomial(square, table["AFN"]) / polynomial(square, table["AFD"]) + 1.0
    odd = z * polynomial(square, table["AGN"]) / polynomial(square, table["AGD"])
    return (sin(phase) * even - cos(phase) * odd) / (sqrt(sqrt(left)) * math.sqrt(math.pi))


def _airy_tail(x: Real) -> Real:
    table = TABLES["airy"]
    power = x * 2.0 * sqrt(x) / 3.0
    z = 1.0 / power
    ratio = polynomial(z, table["AN"]) / polynomial(z, table["AD"])
    return ratio / (sqrt(sqrt(x)) * exp(power) * (2 * math.sqrt(math.pi)))


# Coefficients of Stirling's series in 1 / x², for log gamma above 8 and for its derivative above 10.
_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
# The zero of digamma: the part that float32 holds, and the rest.
_ROOT = (1.461632132530212402, 1.2438149938918910e-8)


def fitted(x: Real, name: str) -> list[float]:
    """Return the coefficients of a polynomial that is fitted to the precision of the dtype of `x`."""
    return TABLES[name][str(torch_dtype(x.x)).removeprefix("torch.")]


@function(aten.lgamma.default, prims.lgamma.default)
def lgamma(x: Real) -> Real:
    """log |Γ(x)|: Stirling's series above 8, a polynomial and the recurrence below, reflection on the left.

    The reflection is log(π / (x sin πx)) - lgamma(-x). Near zero both sides are equal. Where lgamma(-x)
    overflows, x is a pole.
    """
    right = magnitude(x)
    value = where(right < 8.0, _lgamma_near(right), _lgamma_far(right))
    sine = magnitude(sin((x - round_(x)) * math.pi))
    reflected = log(math.pi / (right * sine)) - value
    is_left = ge.LogicalAnd(x < 0.0, right > 1e-17)
    return where(value.equals(INF), INF, where(is_left, reflected, value))


def _lgamma_near(x: Real) -> Real:
    """Return log Γ(x) near 2: log Γ(2 + y) is y (1 + y) times a polynomial for |y| <= 1, exact at its zeros.

    For x below 1 it is one recurrence above, beyond 3 up to five below.
    """
    is_small = x < 1.0
    shift = where(is_small, 1.0, Real(ge.Maximum(floor(x).x, _operand(2.0, x))))
    y = x - shift
    value = y * (x - (shift - 1.0)) * polynomial(y, fitted(x, "lgamma"))
    product = where(x < 3.0, 1.0, x - 1.0)
    for step in range(2, 6):
        product = product * where(x < step + 2.0, 1.0, x - step)
    return value + where(is_small, -log(x), log(product))


def _lgamma_far(x: Real) -> Real:
    inverse = 1.0 / x
    series = inverse * polynomial(inverse * inverse, _STIRLING)
    return (x - 0.5) * (log(x) - 1.0) + (0.5 * math.log(2 * math.pi) - 0.5) + series


@function(aten.digamma.default, prims.digamma.default)
def digamma(x: Real) -> Real:
    """Return the derivative of log Γ.

    It is an asymptotic series above 10, a polynomial and the recurrence below, reflection left of 0.
    """
    left = x < 0.0
    right = where(left, 1.0 - x, x)
    square = 1.0 / (right * right)
    far = log(right) - 0.5 / right - square * polynomial(square, _DIGAMMA)
    value = where(right < 10.0, _digamma_near(right), far)
    reflected = value - math.pi / tan((x - round_(x)) * math.pi)
    reflected = where(x.equals(round_(x)), NAN, reflected)
    return where(x.equals(0.0), -1.0 / x, where(left, reflected, value))


def _digamma_near(x: Real) -> Real:
    """Return digamma between 1 and 2: the distance from its root times a polynomial."""
    is_small = x < 1.0
    y = where(is_small, x + 1.0, x - (floor(x) - 1.0))
    value = (y - _ROOT[0] - _ROOT[1]) * polynomial(y * 2.0 - 3.0, fitted(x, "digamma"))
    steps = where(is_small, -1.0 / x, x * 0.0)
    for step in range(1, 9):
        steps = steps + where(x < step + 1.0, 0.0, 1.0 / (x - step))
    return value + steps


def trigamma(x: Real) -> Real:
    """Return the derivative of digamma.

    It takes six steps of the recurrence, then an asymptotic series; reflection left of 1/2.
    """
    left = x < 0.5
    z = where(left, 1.0 - x, x)
    value = 1.0 / (z * z)
    for step in range(1, 6):
        value = value + 1.0 / ((z + step) * (z + step))
    inverse = 1.0 / (z + 6.0)
    square = inverse * inverse
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42))) + inverse * 0.5 + 1.0
    value = value + series * inverse
    sine = sin(x * math.pi)
    return where(left, math.pi**2 / (sine * sine) - value, value)


@converter(aten.polygamma.default)
def polygamma(n, self, *, meta_outputs):
    """Return the n-th derivative of digamma: from the second on, a zeta function."""
    x = _real(self, meta_outputs.torch_dtype)
    if n < 2:
        return cast((trigamma if n else digamma)(x).x, meta_outputs.dtype)
    sign = 1.0 if n % 2 else -1.0
    value = Real(ge.Zeta(_operand(n + 1.0, x), x.x)) * (sign * math.factorial(n))
    return cast(value.x, meta_outputs.dtype)


@function(aten.special_erfcx.default, prims.erfcx.default)
def erfcx(x: Real) -> Real:
    """Return exp(x²) erfc(x): a polynomial for each of a hundred intervals, a continued fraction for
    large x.
    """
    right = magnitude(x)
    y = 400.0 / (right + 4.0)
    # The bounds are for 0, the end of the last interval, and for NaN, which is an arbitrary integer.
    place = ge.ClipByValueV2(ge.Cast(y.x, dst_type=INT64), cast(0, INT64), cast(99, INT64))
    rows = ge.GatherV2(ge.Const(TABLES["erfcx"], dtype=x.x.dtype), place, [0])
    parts = [Real(part) for part in ge.Unpack(rows, num=7, axis=x.x.rank, outputs=7)]
    t = y * 2.0 - (Real(ge.Cast(place, dst_type=x.x.dtype)) * 2.0 + 1.0)
    near = parts[-1]
    for part in parts[-2::-1]:
        near = near * t + part
    far = _erfcx_tail(right)
    value = where(right > 50.0, far, near)
    return where(x < 0.0, exp(x * x) * 2.0 - value, value)


def _erfcx_tail(x: Real) -> Real:
    """Return 1 / (√π (x + (1/2) / (x + 1 / (x + …)))); the fraction is 1 / x where squares would overflow."""
    inverse = 1.0 / x
    square = inverse * inverse
    ratio = (square * (square * 2.0 + 4.5) + 1.0) / (square * (square * 3.75 + 5.0) + 1.0)
    return inverse * ratio / math.sqrt(math.pi)


@function(aten.special_log_ndtr.default)
def log_ndtr(x: Real) -> Real:
    """Return the log of the normal distribution function; left of -1 the direct formula underflows."""
    t = x * math.sqrt(0.5)
    left = log(erfcx(-t) * 0.5) - t * t
    return where(x < -1.0, left, log1p(erfc(t) * -0.5))


# Per dtype: the integer of the same width, bits of the fraction, bias of the exponent.
_LAYOUT = {torch.float32: (torch.int32, 23, 126), torch.float64: (torch.int64, 52, 1022)}


@converter(aten.frexp.Tensor)
def frexp(self, *, meta_outputs):
    """Return a fraction in [0.5, 1) and a power of two, read from the bits; subnormals are scaled up
    first.
    """
    dtype = torch_dtype(self)
    x = _real(self, dtype)
    integer, width, bias = _LAYOUT[torch_dtype(x.x)]
    small = magnitude(x) < torch.finfo(torch_dtype(x.x)).tiny
    bits = ge.Bitcast(where(small, x * 2.0**width, x).x, type=integer)
    field = (1 << (torch_dtype(x.x).itemsize * 8 - 1 - width)) - 1
    power = ge.BitwiseAnd(ge.RightShift(bits, like(width, bits)), like(field, bits))
    rest = ge.BitwiseAnd(bits, like(~(field << width), bits))
    fraction = Real(ge.Bitcast(ge.BitwiseOr(rest, like(bias << width, bits)), type=torch_dtype(x.x)))
    shift = ge.SelectV2(small, like(bias + width, bits), like(bias, bits))
    plain = ge.LogicalOr(x.equals(0.0), ge.LogicalNot(ge.IsFinite(x.x)))
    exponent = ge.SelectV2(plain, like(0, bits), ge.Sub(power, shift))
    return cast(where(plain, x, fraction).x, dtype), cast(exponent, torch.int32)
