"""Gradients of PyTorch's own table of operators, trained through graph mode, against eager.

`make test` takes one sample of an operator or two of each family, and symbolic sizes for a few; `make
test-full` takes every sample of every operator. What is not perfect is a row in `opinfo_backward.py`, with a
reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
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
    SYMBOLIC_FAILURES,
    Compiler,
    Outcome,
    Sample,
    check_op,
    dtype_of,
    judge,
    shard,
)
from torchair.backend.pipeline.context import CompileFxArgs

# One operator or two of each family, and those that save, return or take something unusual.
SPREAD = (
    "add", "where", "pow", "clamp", "sigmoid", "nn.functional.gelu", "lgamma", "atan2", "addcmul",
    "sum", "var", "std_mean", "logsumexp", "amax", "prod", "median", "linalg.vector_norm",
    "cumsum", "logcumsumexp", "sort", "topk", "cat", "split", "expand", "permute", "unfold", "as_strided",
    "gather", "scatter_add", "index_put", "index_select", "matmul", "addmm", "einsum", "linalg.inv",
    "nn.functional.linear", "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.avg_pool2d", "nn.functional.embedding", "nn.functional.cross_entropy",
    "nn.functional.dropout", "nn.functional.scaled_dot_product_attention", "nn.functional.grid_sample",
    "fft.rfft", "view_as_real",
)  # fmt: skip
SYMBOLIC = ("mul", "mean", "transpose", "softmax", "nn.functional.conv1d", "index_select")


def approve(outcome: Outcome) -> None:
    """Nothing is wrong, and something was compared."""
    assert not outcome.failures, outcome.failures
    compared = outcome.counts["equal"] + outcome.counts["strides"]
    if not compared:
        pytest.skip(f"no sample runs under aot_eager: {outcome.notes[0] if outcome.notes else 'none'}")


def _rows(names: Sequence[str], failures: dict[str, str] = FAILURES) -> list[Any]:
    """Those that are known to fail are expected to."""
    marks = {name: pytest.mark.xfail(reason=why, strict=True) for name, why in failures.items()}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.mark.parametrize("name", _rows(SPREAD))
def test_gradients(name: str) -> None:
    approve(check_op(BY_NAME[name], limit=1))


@pytest.mark.parametrize("name", _rows(SYMBOLIC, SYMBOLIC_FAILURES))
def test_gradients_with_symbolic_sizes(name: str) -> None:
    approve(check_op(BY_NAME[name], dynamic=True, limit=2))


@pytest.mark.full
@pytest.mark.parametrize("name", _rows(DIFFERENTIABLE))
def test_all_samples(name: str) -> None:
    approve(check_op(BY_NAME[name]))


def test_rows_are_known() -> None:
    """Every row names an operator that is checked; those that cannot be are few."""
    assert set(FAILURES) <= set(DIFFERENTIABLE)
    assert set(SYMBOLIC_FAILURES) <= set(SYMBOLIC)
    assert set(SPREAD) | set(SYMBOLIC) <= set(DIFFERENTIABLE)
    left_out = [name for name, op in BY_NAME.items() if op.supports_autograd and dtype_of(op) is None]
    # They run on an accelerator only, or return integers.
    assert set(left_out) <= {
        "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
        "nn.functional.batch_norm:without_cudnn", "nn.functional.one_hot",
    }  # fmt: skip


def test_a_shard_that_is_none_is_refused() -> None:
    assert shard("15/16") == (15, 16)
    with pytest.raises(argparse.ArgumentTypeError, match="0/16 to 15/16"):
        shard("16/16")


def first_sample(name: str) -> Sample:
    op = BY_NAME[name]
    return Sample(op, samples_of(op, torch.float64, requires_grad=True)[0], LAYOUTS)


def test_a_view_is_used_inside_of_the_graph() -> None:
    """AOTAutograd leaves no backward graph for views of inputs; then their results are used in one."""
    assert judge(first_sample("transpose"), {}, "eager", dynamic=False).backwards == 0
    outcome = check_op(BY_NAME["transpose"], limit=2)
    assert outcome.views == 2
    approve(outcome)


def test_a_step_without_a_backward_graph_is_found() -> None:
    class Uncounted(Compiler):
        backwards = property(lambda self: 0, lambda self, count: None)

    with mock.patch.object(opinfo_backward, "Compiler", Uncounted):
        outcome = check_op(BY_NAME["exp"], limit=1)
    assert "no backward graph" in outcome.failures[0][1]


def spoilt(spoil: Callable[[torch.Tensor], torch.Tensor]) -> type[Compiler]:
    """A compiler whose gradients are spoilt on the way out."""

    class Spoilt(Compiler):
        def __call__(self, gm: Any, inputs: Any, settings: Any, request: CompileFxArgs) -> Any:
            runner = super().__call__(gm, inputs, settings, request)
            if not request.is_backward or self.traces_only:
                return runner
            return mock.Mock(boxed=lambda given: [spoil(value) for value in runner.boxed(given)])

    return Spoilt


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda gradient: gradient * 2, "not close"),
        (lambda gradient: gradient.t().contiguous().t(), "strides"),
    ],
    ids=["values", "strides"],
)
def test_a_wrong_gradient_is_found(spoil: Callable[..., torch.Tensor], said: str) -> None:
    """It is not taken for torch's own, either."""
    with mock.patch.object(opinfo_backward, "Compiler", spoilt(spoil)):
        verdict = judge(first_sample("sin"), {}, "eager", dynamic=False)
    assert verdict.kind == "wrong"
    assert said in verdict.why


def test_other_random_numbers_in_backward_are_found() -> None:
    """Values cannot be compared with eager's: that gradients fit the results can."""
    sample = Sample(BY_NAME["nn.functional.dropout"], _dropping(), LAYOUTS)
    assert judge(sample, {}, "eager", dynamic=False).drawn
    with mock.patch.object(opinfo_backward, "Compiler", spoilt(lambda gradient: gradient.flip(0))):
        verdict = judge(sample, {}, "eager", dynamic=False)
    assert verdict.kind == "wrong"
    assert "random numbers" in verdict.why


def _dropping() -> Any:
    samples = samples_of(BY_NAME["nn.functional.dropout"], torch.float64, requires_grad=True)
    return next(sample for sample in samples if sample.kwargs == {"p": 0.5, "training": True})
