"""The numbers at which formulas break, and the judge of results there. The calls are in `edge_rows.py`.

The judges are eager in the same dtype and eager in float64. A result passes where it has the value of one of
them, signs of zeros and NaNs included, or where its error against float64 is at most a few units in the last
place above the error of eager. Eager has two loops on the CPU, a vectorized one and a scalar one, which
differ at some of these numbers; either is accepted. So is what AOTAutograd made of the call: that graph is
what torchair is given.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mpmath
import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch.utils._pytree import tree_flatten

from tests.convert.opinfo import Traced
from torchair.convert.base.results import target_name

special, aten = torch.special, torch.ops.aten
f64, f32, bf16, f16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
FLOATS = (f32, f64, bf16, f16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
INF, NAN = math.inf, math.nan
WAYS = ("reference", "eager")
Call = Callable[..., Any]
Make = Callable[[torch.dtype], list[Tensor]]

# Poles, zeros, ends of branches and of ranges that do not depend on the dtype.
PLAIN = (
    1e-3, 0.1, 0.25, 0.49, 0.5, 0.51, 0.75, 1.0, 1.25, 1.4616321, 1.5, 2.0, 2.05, 2.1, 2.5, 3.0,
    math.pi / 2, math.pi, 3.5, 4.0, 4.5, 5.0, 5.1, 5.5, 6.0, 7.0, 7.5, 7.9, 8.0, 8.1, 9.5, 9.99, 10.0,
    10.1, 11.0, 15.0, 17.0, 20.0, 20.5, 26.0, 49.0, 51.0, 70.0, 80.0, 87.5, 88.7, 89.0, 100.0, 103.0,
    104.0, 170.6, 171.0, 250.0, 1e3, 1e4, 32769.0, 65504.0, 1e10, 2.0**31, 2.0**32, 2.0**63, 2.0**64,
)  # fmt: skip


def edges(dtype: torch.dtype, shortened: bool = False) -> list[Any]:
    """The numbers of a dtype; shortened, those of which all pairs are tried."""
    if dtype is torch.bool:
        return [False, True]
    if dtype.is_complex:
        parts = [0.0, -0.0, 1.0, -2.5, INF, -INF, NAN] + ([] if shortened else [0.5, -1.0, 1e-30, 1e30, 3.0])
        return [complex(real, imag) for real in parts for imag in parts]
    if not dtype.is_floating_point:
        return _integers(dtype)
    limits = torch.finfo(dtype)
    most, least, eps = float(limits.max), float(limits.tiny), float(limits.eps)
    ends = [least * eps, least, eps, 1 - eps / 2, 1 + eps, 1 / eps, math.sqrt(most), most / 2, most]
    more = [0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.5, 20.0, 100.0]
    if not shortened:
        ends += [3 * least * eps, least / 2, least * (1 + eps), eps * eps, eps / 4, math.sqrt(eps)]
        ends += [0.5 / eps + 0.5, 3 / eps, most / 4, most * (1 - eps), math.sqrt(most) / 2]
        more = [*PLAIN, 2 - eps, 2 + 2 * eps]
    sizes = [size for size in (*ends, *more) if size <= most]
    return [0.0, *sizes, INF, -0.0, *(-size for size in sizes), -INF, NAN]


def _integers(dtype: torch.dtype) -> list[int]:
    limits = torch.iinfo(dtype)
    low, high = limits.min, limits.max
    few = [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        15,
        16,
        31,
        32,
        63,
        64,
        -1,
        -2,
        -3,
        -7,
        -8,
        1 << 24,
        (1 << 24) + 1,
        (1 << 53) + 1,
    ]
    return sorted({n for n in (*few, low, low + 1, low // 2, high // 2, high - 1, high) if low <= n <= high})


def line(dtype: torch.dtype) -> list[Tensor]:
    """All edges in a row."""
    return [torch.tensor(edges(dtype), dtype=dtype)]


def divisible(dtype: torch.dtype) -> list[Tensor]:
    """The same without the least integer."""
    return [torch.tensor(edges(dtype)[dtype in INTS :], dtype=dtype)]


def pairs(dtype: torch.dtype) -> list[Tensor]:
    """All pairs of the shortened edges; but the quotient of the least integer by -1 ends the process."""
    found = edges(dtype, shortened=True)
    least = None if dtype in (*FLOATS, *COMPLEX, torch.bool) else torch.iinfo(dtype).min
    both = [(a, b) for a in found for b in found if (a, b) != (least, -1)]
    return [torch.tensor(part, dtype=dtype) for part in zip(*both, strict=True)]


def probabilities(dtype: torch.dtype) -> list[Tensor]:
    """Probabilities and targets, their ends included."""
    eps = torch.finfo(dtype).eps
    found = [0.0, torch.finfo(dtype).tiny, eps, 0.3, 0.5, 1 - eps, 1.0]
    grid = torch.tensor([[a, b] for a in found for b in found], dtype=dtype)
    return [grid[:, 0].contiguous(), grid[:, 1].contiguous()]


def matrix(dtype: torch.dtype) -> list[Tensor]:
    """Rows that reductions stumble over: equal, empty of numbers, overflowing, cancelling, far from zero."""
    limits = torch.finfo(dtype)
    most, least, eps = float(limits.max), float(limits.tiny), float(limits.eps)
    far = most / 4 if dtype is f64 else most  # beyond, eager's own mean of doubles overflows
    rows = [
        [-INF] * 4, [INF] * 4, [-INF, INF, 0.0, 1.0], [NAN, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, NAN], [NAN] * 4,
        [0.0] * 4, [-0.0] * 4, [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, -0.0, 0.0], [-INF, -INF, -INF, 0.0],
        [INF, 1.0, 2.0, 3.0], [most] * 4, [-most] * 4, [far, -far, 1.0, -1.0], [most, most / 2, 0.0, 1.0],
        [math.sqrt(most) * 2] * 4, [math.sqrt(most) * 2, 1.0, -1.0, 0.0], [least] * 4, [least * eps] * 4,
        [math.sqrt(least) / 4, -math.sqrt(least) / 4, 0.0, 0.0], [1 / eps, 1 / eps + 2, 1 / eps, 1 / eps + 2],
        [2.5] * 4, [1.0, 2.0, 3.0, 4.0], [-1e-3, 1e-3, -1e3, 1e3], [100.0, 200.0, -300.0, 0.0],
    ]  # fmt: skip
    return [torch.tensor(rows, dtype=dtype)]


def moderate(dtype: torch.dtype) -> list[Tensor]:
    """Rows for norms, which lose what a large common part leaves of a float32, and signs of zeros."""
    (x,) = matrix(dtype)
    is_kept = (x.isfinite().logical_not() | (x.abs() < 1e4)).all(1) & (x != 0).any(1)
    return [x[is_kept]]


def two_matrices(dtype: torch.dtype) -> list[Tensor]:
    """Each row beside each other one."""
    (x,) = matrix(dtype)
    return [x.repeat_interleave(len(x), 0), x.repeat(len(x), 1)]


@dataclass(frozen=True)
class Row:
    """A call, what it is tried on, and how far from eager's error it may be: in units in the last place of
    the true result, or of `size` where that is larger.
    """

    name: str
    call: Call
    make: Make
    dtypes: Sequence[torch.dtype] = FLOATS
    ulps: float = 4.0
    size: float = 0.0
    truth: Call | None = None


@dataclass
class Seen:
    """What the checks saw: numbers compared, faults, and the ATen ops that were converted."""

    checks: int = 0
    faults: list[str] = field(default_factory=list[str])
    targets: Counter[str] = field(default_factory=Counter[str])


class Recorded(Traced):
    """A row under way, which remembers what AOTAutograd made of it."""

    targets: Sequence[str] = ()

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiler given to AOTAutograd."""
        self.targets = [target_name(node.target) for node in gm.graph.nodes if node.op == "call_function"]
        return super().compile(gm, inputs)


# The judge.


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a result, complex ones as pairs of real numbers."""
    found = [part for part in tree_flatten(value)[0] if isinstance(part, Tensor)]
    return [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in found]


def _copies(args: Sequence[Tensor]) -> list[Tensor]:
    return [arg.clone() for arg in args]


def _strided(args: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers with gaps between them, for which eager has its scalar loops."""
    return [torch.stack([arg, arg], -1)[..., 0] if arg.dim() else arg for arg in args]


def _wide(args: Sequence[Tensor]) -> list[Tensor]:
    return [arg.to(torch.complex128 if arg.is_complex() else f64) for arg in args]


def judge(got: Tensor, judges: Sequence[Tensor], truth: Tensor | None, row: Row) -> Tensor:
    """Where a result is wrong."""
    right = functools.reduce(torch.logical_or, [_same(got, expected) for expected in judges])
    if not got.dtype.is_floating_point:
        return ~right
    limits = torch.finfo(got.dtype)
    if truth is None or not truth.is_floating_point() or truth.shape != got.shape:
        truth = judges[0].to(f64)
    right |= _same(got, truth.to(got.dtype))
    error = torch.zeros_like(truth)
    for expected in judges:
        both = expected.isfinite() & truth.isfinite()
        error = torch.maximum(error, torch.where(both, (expected.to(f64) - truth).abs(), 0.0))
    unit = truth.abs().clamp(max(limits.tiny, row.size), limits.max) * limits.eps
    is_near = got.isfinite() & truth.isfinite() & ((got.to(f64) - truth).abs() <= error + row.ulps * unit)
    has_sign = (truth == 0) & (got == 0)
    return ~(right | (is_near & ~has_sign) | (is_near & (got.signbit() == truth.signbit())))


def _same(a: Tensor, b: Tensor) -> Tensor:
    if not a.dtype.is_floating_point:
        return a == b
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())


def check(row: Row, dtype: torch.dtype, seen: Seen | None = None, ways: Sequence[str] = WAYS) -> Seen:
    """Compare one row in one dtype, by each code generator."""
    seen = Seen() if seen is None else seen
    args = row.make(dtype)
    if dtype in INTS:
        args = _calculable(row, args)
        if args is None:
            return seen
    expected = tensors_in(row.call(*_copies(args)))
    others = tensors_in(row.call(*_strided(args)))
    if [part.shape for part in others] != [part.shape for part in expected]:
        others = expected
    truths = _truths(row, args, len(expected))
    traced = Recorded(ways)
    compiled = aot_function(
        lambda *tensors: tree_flatten(row.call(*tensors))[0],
        traced.compile,
        keep_inference_input_mutations=True,
    )
    before_us = tensors_in(compiled(*_copies(args)))
    seen.targets.update(traced.targets)
    judges = (expected, others, before_us)
    for way in ways:
        traced.way = way
        got = tensors_in(compiled(*_copies(args)))
        assert len(got) == len(expected), f"{row.name}: {len(got)} results, expected {len(expected)}"
        for number, result in enumerate(got):
            kind = (result.dtype, result.shape)
            assert kind == (expected[number].dtype, expected[number].shape), f"{row.name}: {kind}"
            wrong = judge(result, [run[number] for run in judges], truths[number], row)
            seen.checks += result.numel()
            seen.faults += [
                _shown(f"{row.name} {way}", place, args, result, expected[number], truths[number])
                for place in wrong.nonzero()[:4].tolist()
            ]
    return seen


def _truths(row: Row, args: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """Eager in float64, if it has the op; what is not computed in floats is its own truth."""
    try:
        found: list[Tensor | None] = list(tensors_in(row.call(*_wide(args))))
    except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
        found = []
    if len(found) == count == 1 and row.truth is not None:
        numbers = zip(args[0].tolist(), found[0].tolist(), strict=True)
        found = [torch.tensor([_exact(row.truth, number, known) for number, known in numbers], dtype=f64)]
    return found if len(found) == count else [None] * count


def _exact(function: Call, number: float, known: float) -> float:
    """What mpmath says, which is slow for huge numbers and refuses poles."""
    if not math.isfinite(number) or not math.isfinite(known) or number == 0 or abs(number) > 1e6:
        return known
    made = function(number)
    return float(made) if isinstance(made, mpmath.mpf) else known


def _calculable(row: Row, args: list[Tensor]) -> list[Tensor] | None:
    """Integers that eager does not refuse, if there are any: no quotient by zero, no negative power."""
    for keep in (torch.ones_like(args[-1], dtype=torch.bool), args[-1] != 0, args[-1] > 0):
        tried = [arg[keep] for arg in args]
        try:
            row.call(*tried)
        except RuntimeError:
            continue
        return tried
    return None


def _shown(
    name: str, place: list[int], args: Sequence[Tensor], got: Tensor, expected: Tensor, truth: Any
) -> str:
    at = tuple(place)
    given = [arg[at[: arg.dim()]].tolist() if _fits(arg, at) else "..." for arg in args]
    wide = truth[at].item() if truth is not None and truth.shape == got.shape else None
    kind = str(args[0].dtype).removeprefix("torch.")
    values = f"{got[at].item()!r}, eager {expected[at].item()!r}, float64 {wide!r}"
    return f"{name} {kind}{place} of {given}: {values}"


def _fits(arg: Tensor, at: tuple[int, ...]) -> bool:
    return all(place < size for place, size in zip(at, arg.shape, strict=False))
