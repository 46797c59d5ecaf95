"""Define the built-in replacements: a chain of ops becomes the one op of the `npu` library that does the
same.

A family is one body with parameters: with and without an epsilon, with and without a use of the sum. Longer
chains come first. A rule exists only where all ops it names are defined.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.core.torch_private.operators.schemas import find_overload

npu = torch.ops.npu
aten = torch.ops.aten
Body = Callable[..., Any]
WhyNot = Callable[[Any], str | None]

INT8_CODES = (1, 12)
# Stand for any value of these parameters while a pattern is traced.
EPSILON = 2e-6
SCALARS = {"epsilon": EPSILON, "dtype": INT8_CODES[0]}


@dataclass(frozen=True)
class Rule:
    """Define what to find, what replaces it, and when it does not apply.

    `anchor` is the name of an op in the pattern, `ops` must all be defined, and `names` are the parameters of
    both functions.
    """

    name: str
    anchor: str
    ops: tuple[str, ...]
    names: tuple[str, ...]
    find: Body
    put: Body
    examples: Callable[[], Sequence[Any]]
    why_not: WhyNot = lambda match: None
    scalars: dict[str, float] = field(default_factory=dict[str, float])

    def is_defined(self) -> bool:
        """Return whether every op it names is defined."""
        return all(find_overload(f"npu.{op}.default") is not None for op in self.ops)

    def functions(self) -> tuple[Body, Body]:
        """Return both functions with a signature, from which the matcher reads parameter names."""
        return _signed(self.find, self.names), _signed(self.put, self.names)

    def inputs(self) -> list[Any]:
        """Return fake tensors to trace with."""
        with FakeTensorMode():
            return list(self.examples())


def _signed(body: Body, names: Sequence[str]) -> Body:
    def run(*args: Any) -> Any:
        return body(*args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return run


def value(match: Any, name: str) -> torch.Tensor:
    """Return the fake tensor that a parameter of the rule has in this match."""
    return match.kwargs[name].meta["val"]


# F1, F2, F3, F5: ops after the RMS norm of a sum

NORM = ("x1", "x2", "gamma")


def _norm(x1: Any, x2: Any, gamma: Any, *epsilon: float) -> tuple[Any, Any]:
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
    return y, x


def _named(epsilon: Sequence[float]) -> dict[str, float]:
    return dict(zip(("epsilon",), epsilon, strict=False))


def _examples(*shapes: tuple[int, ...], rank: int = 2) -> Callable[[], list[Any]]:
    x = (2, 3, 8)[3 - rank :]

    def make() -> list[Any]:
        half = torch.float16
        sums = [torch.empty(x, dtype=half), torch.empty(x, dtype=half), torch.empty(8, dtype=half)]
        return [*sums, *(torch.empty(shape, dtype=half) for shape in shapes)]

    return make


def _variants(
    name: str,
    ops: tuple[str, ...],
    extra: tuple[str, ...],
    find: Body,
    put: Body,
    examples: Callable[[], list[Any]],
    why_not: WhyNot = lambda match: None,
    uses: Sequence[bool] = (True, False),
) -> Iterator[Rule]:
    """Yield the rule with and without an epsilon, with and without a use of the sum."""
    for uses_sum, has_epsilon in itertools.product(uses, (True, False)):

        def cut(body: Body, uses_sum: bool = uses_sum) -> Body:
            return lambda *args: body(*args) if uses_sum else body(*args)[:-1]

        yield Rule(
            f"{name}{'_sum' if uses_sum else ''}{'_epsilon' if has_epsilon else ''}",
            "npu.npu_add_rms_norm.default",
            ("npu_add_rms_norm", *ops),
            (*NORM, *extra, *(("epsilon",) if has_epsilon else ())),
            cut(find),
            cut(put),
            (lambda: [*examples(), EPSILON]) if has_epsilon else examples,
            why_not,
            {name: SCALARS[name] for name in (*extra, *(["epsilon"] * has_epsilon)) if name in SCALARS},
        )


def _find_dynamic_quant(x1: Any, x2: Any, gamma: Any, smooth: Any, *epsilon: float) -> tuple[Any, ...]:
    y, x = _norm(x1, x2, gamma, *epsilon)
    return *npu.npu_dynamic_quant(y, smooth_scales=smooth), x


def _put_dynamic_quant(x1: Any, x2: Any, gamma: Any, smooth: Any, *epsilon: float) -> tuple[Any, ...]:
    result = npu.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, smooth_scale1=smooth, output_mask=[True, False], **_named(epsilon)
    )
    return result[0], result[3], result[2]


def _find_flat_quant(rows: Callable[[Any], Any]) -> Body:
    def find(x1: Any, x2: Any, gamma: Any, *epsilon: float) -> tuple[Any, ...]:
        y, x = _norm(x1, x2, gamma, *epsilon)
        quantised, scale = npu.npu_dynamic_quant(y.view(rows(y), y.shape[2]))
        return quantised, scale.view(-1, 1), x

    return find


def _put_flat_quant(x1: Any, x2: Any, gamma: Any, *epsilon: float) -> tuple[Any, ...]:
    result = npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, output_mask=[True, False], **_named(epsilon))
    return result[0].flatten(0, 1), result[3].view(-1, 1), result[2]


def _why_not_flat(match: Any) -> str | None:
    x1 = value(match, "x1")
    return None if x1.dim() == 3 else f"x1 has {x1.dim()} dims, not 3"


def _cast_to_copy(y: Any) -> Any:
    return aten._to_copy.default(y, dtype=torch.float32)


def _cast_npu(y: Any) -> Any:
    return npu._npu_dtype_cast(y, torch.float32)


def _find_cast(cast: Body, flat: bool) -> Body:
    def find(x1: Any, x2: Any, gamma: Any, *epsilon: float) -> tuple[Any, ...]:
        y, x = _norm(x1, x2, gamma, *epsilon)
        return cast(y.view(-1, y.shape[-1]) if flat else y), y, x

    return find


def _put_cast(flat: bool) -> Body:
    def put(x1: Any, x2: Any, gamma: Any, *epsilon: float) -> tuple[Any, ...]:
        wide, y, _, x = npu.npu_add_rms_norm_cast(x1, x2, gamma, **_named(epsilon))
        return wide.view(-1, wide.shape[-1]) if flat else wide, y, x

    return put


def _find_quant(
    x1: Any, x2: Any, gamma: Any, scales: Any, zero: Any, dtype: int, *epsilon: float
) -> tuple[Any, ...]:
    y, x = _norm(x1, x2, gamma, *epsilon)
    return npu.npu_quantize(y, scales, zero, dtype, -1, True), x


def _put_quant(
    x1: Any, x2: Any, gamma: Any, scales: Any, zero: Any, dtype: int, *epsilon: float
) -> tuple[Any, ...]:
    result = npu.npu_add_rms_norm_quant(x1, x2, gamma, scales, zero, axis=-1, **_named(epsilon))
    return result[0], result[2]


def _why_not_quant(match: Any) -> str | None:
    x1, x2, gamma, scales = (value(match, name) for name in ("x1", "x2", "gamma", "scales"))
    if x1.dtype != x2.dtype or x1.dtype not in (torch.float16, torch.bfloat16):
        return f"x1 is {x1.dtype} and x2 is {x2.dtype}; both must be float16 or both bfloat16"
    width = x1.shape[-1]
    if not isinstance(width, int) or width * x1.element_size() % 32:
        return "the size of a row is not known to be a multiple of 32 bytes"
    if match.kwargs["dtype"] not in INT8_CODES:
        return f"the result is not int8 but dtype code {match.kwargs['dtype']}"
    if value(match, "zero").dtype in (torch.int8, torch.uint8):
        return "the zero points are int8 or uint8"
    return None if gamma.shape == scales.shape else "gamma and scales differ in shape"


# F4: a batched product with batch and rows exchanged

HALVES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = 65536


def _why_not_transpose(leading: bool) -> WhyNot:
    def why_not(match: Any) -> str | None:
        x1, x2 = value(match, "x1"), value(match, "x2")
        if x1.dim() != 3 or x2.dim() != 3 or x1.dtype not in HALVES or x1.dtype != x2.dtype:
            return "the operands are not both 3-D with the same float dtype"
        sizes = (x1.shape[0], x1.shape[1], x1.shape[2], x2.shape[2])
        if not all(isinstance(size, int) for size in sizes):
            return "a size is not known"
        if x1.shape[2] % 128 or x2.shape[2] % 128:
            return "a last dim is not divisible by 128"
        reach = x1.shape[2] * (x1.shape[1] if leading else 1)
        return None if 1 <= reach < LARGEST else "the inner dim is too large"

    return why_not


def _transposed(perm: list[int]) -> Body:
    return lambda x1, x2: npu.npu_transpose_batchmatmul(x1, x2, perm_x1=perm)


def _itself(x: Any) -> Any:
    return x.view(x.shape)


TRANSPOSED: tuple[tuple[str, bool, Body], ...] = (
    (
        "transpose_expand_view_bmm_view_transpose",
        True,
        lambda x1, x2: _itself(torch.bmm(_itself(_spread(x1)), x2)).transpose(0, 1),
    ),
    (
        "transpose_expand_bmm_transpose",
        True,
        lambda x1, x2: torch.bmm(_spread(x1), x2).transpose(0, 1),
    ),
    ("bmm_view_transpose", False, lambda x1, x2: _itself(torch.bmm(x1, x2)).transpose(0, 1)),
    ("bmm_transpose", False, lambda x1, x2: torch.bmm(x1, x2).transpose(0, 1)),
)


def _spread(x: Any) -> Any:
    return x.transpose(0, 1).expand(x.shape[1], x.shape[0], x.shape[2])


def _bmm_examples() -> list[Any]:
    return [torch.empty(2, 2, 128, dtype=torch.float16), torch.empty(2, 128, 128, dtype=torch.float16)]


def rules() -> Iterator[Rule]:
    """Yield all rules, widest first."""
    dynamic = ("npu_dynamic_quant", "npu_add_rms_norm_dynamic_quant")
    yield from _variants(
        "norm_dynamic_quant", dynamic, ("smooth",), _find_dynamic_quant, _put_dynamic_quant, _examples((8,))
    )
    for spelling, rows in {"product": lambda y: y.shape[0] * y.shape[1], "rest": lambda y: -1}.items():
        yield from _variants(
            f"norm_flat_dynamic_quant_{spelling}", dynamic, (), _find_flat_quant(rows), _put_flat_quant,
            _examples(rank=3), _why_not_flat, uses=(True,),
        )  # fmt: skip
    for flat, (op, cast) in itertools.product(
        (True, False), {"": _cast_to_copy, "_npu_dtype_cast": _cast_npu}.items()
    ):
        yield from _variants(
            f"norm_cast{'_flat' if flat else ''}{op}", ("npu_add_rms_norm_cast", *([op] if op else [])), (),
            _find_cast(cast, flat), _put_cast(flat), _examples(rank=3), uses=(True,),
        )  # fmt: skip
    yield from _variants(
        "norm_quant", ("npu_quantize", "npu_add_rms_norm_quant"), ("scales", "zero", "dtype"), _find_quant,
        _put_quant, lambda: [*_examples((8,), (8,))(), 1], _why_not_quant,
    )  # fmt: skip
    for name, leading, find in TRANSPOSED:
        yield Rule(
            name, "aten.bmm.default", ("npu_transpose_batchmatmul",), ("x1", "x2"), find,
            _transposed([1, 0, 2] if leading else [0, 1, 2]), _bmm_examples, _why_not_transpose(leading),
        )  # fmt: skip


@functools.cache
def anchors() -> frozenset[str]:
    """Return the names of ops without which no built-in rule applies.

    Names avoid loading the library for a graph that has none of these ops.
    """
    return frozenset(rule.anchor for rule in rules())
