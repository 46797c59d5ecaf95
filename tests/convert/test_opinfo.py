"""Every operator of PyTorch's own table, against eager: reference run and lowered graph, static and dynamic.

`make test` takes one sample of every fourth operator in float32, and symbolic sizes for every sixteenth of
them; `make test-full` takes more samples of all, all sizes symbolic too, and the other dtypes. What is not
perfect is a row in `opinfo.py`, with a reason.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from tests.convert import opinfo
from tests.convert.harness import OLD
from tests.convert.opinfo import (
    BY_NAME,
    DTYPES,
    OPAQUE,
    OTHER_MEMORY,
    UNEQUAL,
    Outcome,
    check_op,
    compiled_sample,
)
from tests.support.memory import other_memory
from torchair.backend.pipeline.compile import compile_fx

FLOAT_OPS = [name for name, op in BY_NAME.items() if torch.float32 in op.supported_dtypes("cpu")]
# One operator or two of each family, for the whole way through `torch.compile`.
COMPILED = (
    "add", "where", "var", "cumsum", "cat", "nn.functional.layer_norm", "nn.functional.linear",
    "nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.embedding", "index_put", "lgamma",
)  # fmt: skip
OTHERS = [
    (name, dtype)
    for dtype in DTYPES
    if dtype is not torch.float32
    for name, op in BY_NAME.items()
    if dtype in op.supported_dtypes("cpu")
]


def judge(outcome: Outcome) -> None:
    """Nothing fatal, nothing unequal in values or memory; in float32 also fall-backs only where a row says
    why.
    """
    if not outcome.samples:
        pytest.skip(f"no sample runs under aot_eager: {outcome.skipped[0] if outcome.skipped else 'none'}")
    assert not outcome.fatal, outcome.fatal
    assert not outcome.unequal, outcome.unequal
    assert not outcome.memory or outcome.name in OTHER_MEMORY, outcome.memory
    assert not outcome.broken, outcome.broken
    if outcome.dtype == "float32":
        # Before 2.12 no token keeps a check of errors where it stands, so it is carried through as it is.
        fallbacks = set(outcome.fallbacks) - ({"aten._linalg_check_errors.default"} if OLD else set())
        assert not fallbacks or outcome.name in OPAQUE, outcome.fallbacks


@pytest.mark.parametrize("name", FLOAT_OPS[::6])
def test_float32(name: str) -> None:
    judge(check_op(BY_NAME[name], torch.float32, dynamic=False, limit=1))


@pytest.mark.parametrize("name", FLOAT_OPS[1::24])
def test_float32_with_symbolic_sizes(name: str) -> None:
    judge(check_op(BY_NAME[name], torch.float32, dynamic=True, limit=1))


@pytest.mark.parametrize(
    "name", ["narrow", "tensor_split", "vsplit", "as_strided:partial_views", "take", "linalg.cholesky"]
)
def test_numbers_that_are_not_sizes(name: str) -> None:
    """Numbers read from data, symbols that only strides and offsets have, tokens that are no tensors."""
    judge(check_op(BY_NAME[name], torch.float32, dynamic=True, limit=6))


@pytest.mark.full
@pytest.mark.parametrize("name", FLOAT_OPS)
def test_float32_samples(name: str) -> None:
    """Up to a dozen samples, static and dynamic. A row that is not needed any more has to go."""
    outcomes = [check_op(BY_NAME[name], torch.float32, dynamic, limit=12) for dynamic in (False, True)]
    ran = [outcome for outcome in outcomes if outcome.samples]
    for outcome in ran or outcomes:
        judge(outcome)
    fallbacks = {op: why for outcome in ran for op, why in outcome.fallbacks.items()}
    assert bool(fallbacks) == (name in OPAQUE), fallbacks or "its row in OPAQUE is stale"
    if name in OTHER_MEMORY:
        assert any(outcome.memory for outcome in ran), "its row in OTHER_MEMORY is stale"


def _row(name: str, dtype: torch.dtype) -> object:
    why = UNEQUAL.get((name, dtype))
    label = f"{name}-{str(dtype).removeprefix('torch.')}"
    return pytest.param(
        name, dtype, id=label, marks=pytest.mark.xfail(reason=why, strict=True) if why else ()
    )


@pytest.mark.full
@pytest.mark.parametrize(("name", "dtype"), [_row(*pair) for pair in OTHERS])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    outcomes = [check_op(BY_NAME[name], dtype, dynamic, limit=4) for dynamic in (False, True)]
    ran = [outcome for outcome in outcomes if outcome.samples]
    for outcome in ran or outcomes:
        judge(outcome)


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", COMPILED)
def test_default_code_generator(name: str, dynamic: bool) -> None:
    """`torch.compile` with default options, Inductor included."""
    got, expected, tolerance = compiled_sample(BY_NAME[name], torch.float32, dynamic)
    torch.testing.assert_close(got.values, expected.values, equal_nan=True, **tolerance)
    assert not other_memory(got, expected, every_dim=True)


def test_other_strides_are_found() -> None:
    def spoilt(*args: Any) -> Any:
        runner = compile_fx(*args)
        turned = mock.Mock(conversion=runner.conversion)
        turned.boxed = lambda given: [value.t().contiguous().t() for value in runner.boxed(given)]
        return turned

    with mock.patch.object(opinfo, "compile_fx", spoilt):
        outcome = check_op(BY_NAME["add"], torch.float32, dynamic=False, limit=2)
    assert "strides (1, 5) for (5, 1)" in outcome.memory[0]
    with pytest.raises(AssertionError, match="strides"):
        judge(outcome)


def test_rows_are_known() -> None:
    """Every row names an operator of the table, and hardly any operator has one."""
    assert len(OPAQUE) <= 0.03 * len(FLOAT_OPS)
    unknown = {*OPAQUE, *OTHER_MEMORY, *(name for name, _ in UNEQUAL)} - set(BY_NAME)
    assert not unknown or OLD, unknown
