"""Tensors from sizes and numbers; casts and copies."""

from __future__ import annotations

import pytest
import torch

from tests.convert.aten.test_pointwise import bf16, boolean, f16, f32, f64, i32, i64, make
from tests.convert.harness import check, converted

CREATE = {
    "zeros": lambda x: torch.zeros(2, x.shape[0]), "ones": lambda x: torch.ones(x.shape[1], dtype=i32),
    "full": lambda x: torch.full((2, x.shape[0]), 2.5),
    "full_bool": lambda x: torch.full((x.shape[0],), True),
    "full_scalar": lambda x: torch.full((), 3.5) + x,
    "scalar_tensor": lambda x: torch.scalar_tensor(2) + x,
    "full_size": lambda x: torch.full((3,), x.shape[0]), "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like, "zeros_like_cast": lambda x: torch.zeros_like(x, dtype=boolean),
    "full_like": lambda x: torch.full_like(x, -1.5),
    "full_like_cast": lambda x: torch.full_like(x, 3, dtype=i64),
    "new_zeros": lambda x: x.new_zeros(x.shape[0], 2),
    "new_ones": lambda x: x.new_ones(x.shape, dtype=boolean),
    "new_full": lambda x: x.new_full((2, x.shape[1]), 7),
    "empty_filled": lambda x: torch.empty(x.shape[0]).fill_(2), "fill": lambda x: x.clone().fill_(3),
    "fill_tensor": lambda x: torch.fill(x, torch.tensor(2.0)), "zero": lambda x: x.clone().zero_(),
    "arange": lambda x: torch.arange(x.shape[0]),
    "arange_start": lambda x: torch.arange(2, x.shape[0] + 2),
    "arange_step": lambda x: torch.arange(10, 10 - x.shape[1], -2, dtype=i32),
    "arange_float": lambda x: torch.arange(x.shape[0], dtype=f32),
    "arange_half": lambda x: torch.arange(5, dtype=f16),
    "arange_fraction": lambda x: torch.arange(0.1, 2.0, 0.3),
    "arange_double": lambda x: torch.arange(0, 1, 0.1, dtype=f64),
    "arange_cut": lambda x: torch.arange(0, 7.5, 2, dtype=i64),
    "linspace": lambda x: torch.linspace(-1, 2, 7),
    "linspace_half": lambda x: torch.linspace(0, 1, 5, dtype=f16),
    "linspace_int": lambda x: torch.linspace(0, 9, 4, dtype=i64),
    "linspace_one": lambda x: torch.linspace(3, 4, 1), "logspace": lambda x: torch.logspace(0, 2, 5),
    "eye": lambda x: torch.eye(3), "eye_sizes": lambda x: torch.eye(x.shape[0], x.shape[1], dtype=i64),
    "tril_indices": lambda x: torch.tril_indices(3, 4, 1),
    "triu_indices": lambda x: torch.triu_indices(3, 4, -1),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CREATE)
def test_factory_op_equals_eager(name, dynamic):
    check(CREATE[name], make(f32, 4, 3), dynamic=dynamic)


def test_new_empty_has_the_shape_and_type():
    graph, _, _, _ = converted(lambda x: x.new_empty((2, x.shape[0]), dtype=i32) * 0, [make(f32, 4)])
    assert "Empty" in [op.type for op in graph.ops]
    check(lambda x: x.new_empty((2, x.shape[0]), dtype=i32) * 0, make(f32, 4), dynamic=True)
    check(lambda x: torch.empty_like(x) * 0, make(i64, 4))
    check(lambda x: x.new_empty_strided((2, 3), (1, 2)).zero_(), make(f32, 4))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "dtypes", [(f32, i64), (f32, boolean), (i64, bf16), (bf16, f32), (f32, f32), (boolean, f16)], ids=str
)
def test_cast_equals_eager(dtypes, dynamic):
    check(lambda x: x.to(dtypes[1], copy=True), make(dtypes[0], 3, 4), dynamic=dynamic)
    check(
        lambda x: torch.ops.prims.convert_element_type(x, dtypes[1]), make(dtypes[0], 3, 4), dynamic=dynamic
    )


def test_copy_equals_eager():
    x = make(f32, 3, 4)
    check(lambda x: x.clone(memory_format=torch.contiguous_format), x.t())
    check(lambda x: (x.detach() + 1, torch.ops.aten.alias(x) * 2, torch.ops.aten.lift_fresh_copy(x)), x)
    check(lambda x, y: torch.ops.aten.copy(x, y), x, make(i64, 4))
    check(lambda x, y: torch.ops.aten.copy(x, y), x, make(f32, 3, 4), dynamic=True)
    check(lambda x: x.view(i32), x)
    check(lambda x: x.view(torch.int16), x)


def test_a_copy_keeps_the_value_from_before_a_write():
    def run(x):
        before = x.clone()
        x.add_(1)
        return before, x * 2

    check(run, make(f32, 3, 4))
    check(run, make(f32, 3, 4), dynamic=True)


def test_writes_reach_the_input():
    def run(x, y):
        x.copy_(y)
        return x + 1

    check(run, make(f32, 3, 4), make(i64, 4))


@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_dropout_without_training(dtype, dynamic):
    def dropped(x):
        made, mask = torch.ops.aten.native_dropout(x, 0.5, False)
        return made.neg(), mask

    check(dropped, make(dtype, 3, 4), dynamic=dynamic)


def test_dropout_without_training_is_a_copy():
    check(lambda x: torch.ops.aten.native_dropout(x, 0.5, False)[0], make(f32, 3, 4))


@pytest.mark.parametrize("dtype", [f32, f16])
def test_dropout_backward(dtype):
    check(
        lambda g, m: torch.ops.aten.native_dropout_backward(g, m, 2.0), make(dtype, 3, 4), make(boolean, 3, 4)
    )
