"""Gradients of PyTorch's own table of operators, trained through graph mode, against eager.

`make test` takes two samples of an operator or two of each family, and symbolic sizes for a few; `make
test-full` takes every sample of every operator. What is not perfect is a row in `opinfo_backward.py`, with a
reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.convert import opinfo_backward
from tests.convert.opinfo import BY_NAME, samples_of
from tests.convert.opinfo_backward import (
    DIFFERENTIABLE,
    FAILURES,
    LAYOUTS,
    Compiler,
    Outcome,
    Sample,
    check_op,
    dtype_of,
    judge,
    shard,
    summary,
)

# One operator or two of each family, and those that save, return or take something unusual.
SPREAD = (
    "add", "where", "pow", "clamp", "sigmoid", "nn.functional.gelu", "lgamma", "atan2", "addcmul",
    "sum", "var", "std_mean", "logsumexp", "amax", "prod", "median", "linalg.vector_norm",
    "cumsum", "logcumsumexp", "sort", "topk", "cat", "split", "expand", "permute", "unfold", "as_strided",
    "gather", "scatter_add", "index_put", "index_select", "matmul", "addmm", "einsum", "linalg.solve",
    "nn.functional.linear", "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.max_pool2d", "nn.functional.embedding", "nn.functional.cross_entropy",
    "nn.functional.dropout", "nn.functional.scaled_dot_product_attention", "nn.functional.interpolate:bilinear",
    "fft.rfft", "view_as_real",
)  # fmt: skip
SYMBOLIC = ("mul", "mean", "transpose", "nn.functional.softmax", "nn.functional.conv1d", "index_select")


def approve(outcome: Outcome) -> None:
    """Nothing is wrong, and something was compared."""
    assert not outcome.failures, outcome.failures
    compared = outcome.counts["equal"] + outcome.counts["strides"]
    if not compared:
        pytest.skip(f"no sample runs under aot_eager: {outcome.notes[0] if outcome.notes else 'none'}")


def _rows(names: Any) -> list[Any]:
    """With the exceptions that are known."""
    return [
        pytest.param(name, marks=pytest.mark.xfail(reason=FAILURES[name], strict=True))
        if name in FAILURES
        else name
        for name in names
    ]


@pytest.mark.parametrize("name", SPREAD)
def test_gradients(name: str) -> None:
    approve(check_op(BY_NAME[name], limit=2))


@pytest.mark.parametrize("name", SYMBOLIC)
def test_gradients_with_symbolic_sizes(name: str) -> None:
    approve(check_op(BY_NAME[name], dynamic=True, limit=2))


@pytest.mark.full
@pytest.mark.parametrize("name", _rows(DIFFERENTIABLE))
def test_all_samples(name: str) -> None:
    approve(check_op(BY_NAME[name]))


def first_sample(name: str, number: int = 0) -> Sample:
    op = BY_NAME[name]
    return Sample(op, samples_of(op, torch.float64, requires_grad=True)[number], LAYOUTS)


def test_a_view_is_used_inside_of_the_graph() -> None:
    """AOTAutograd leaves no backward graph for views of inputs; then their results are used in it."""
    outcome = check_op(BY_NAME["expand"], limit=2)
    assert outcome.views == 2
    assert judge(first_sample("expand"), {}, "eager", dynamic=False).backwards == 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda gradient: gradient * 2, "not close"),
        (lambda gradient: gradient.t().contiguous().t(), "strides"),
        (lambda gradient: gradient.float(), "float32"),
    ],
    ids=["values", "strides", "dtype"],
)
def test_a_wrong_gradient_is_found(spoil: Any, said: str) -> None:
    """What is spoilt behind our back is seen, and is not taken for torch's own."""
    sample = first_sample("exp")

    class Spoilt(Compiler):
        def __call__(self, *args: Any, backward: bool, **options: Any) -> Any:
            runner = super().__call__(*args, backward=backward, **options)
            if not backward or self.traces_only:
                return runner
            boxed = runner.boxed
            return mock.Mock(boxed=lambda given: [spoil(gradient) for gradient in boxed(given)])

    with mock.patch.object(opinfo_backward, "Compiler", Spoilt):
        verdict = judge(sample, {}, "eager", dynamic=False)
    assert verdict.kind == "wrong"
    assert said in verdict.why
