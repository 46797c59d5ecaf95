"""What is the same, and what only looks so."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.sweep import backend
from torchair import ge
from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.key import key_function
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.fxgraph.value_keys import constant_key, number_key, tensor_key, value_key
from torchair.ge.graph import Graph

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
NUMBERS = [0.0, -0.0, 0, False, 1, True, 1.0, 1 + 1e-15, math.nan, OTHER_NAN, math.inf, 0j, -0j, 1 + 0j]


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(range(len(NUMBERS)), 2)))
def test_different_numbers_have_different_keys(a: int, b: int) -> None:
    assert number_key(NUMBERS[a]) != number_key(NUMBERS[b])
    assert value_key([NUMBERS[a]]) != value_key([NUMBERS[b]])


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_has_one_key(number: Any) -> None:
    again = type(number)(number)
    assert number_key(number) == number_key(again)
    assert hash(number_key(number)) == hash(number_key(again))


CONSTANTS = [
    torch.tensor([1.0]),
    torch.tensor([1.0], dtype=torch.float64),
    torch.tensor([1 + 1e-12], dtype=torch.float64),
    torch.tensor([[1.0]]),
    torch.tensor(1.0),
    torch.tensor([0.0]),
    torch.tensor([-0.0]),
    torch.tensor([math.nan]),
    torch.tensor([1], dtype=torch.int32),
    torch.tensor([True]),
    torch.empty(0),
    torch.empty(0, 2),
    torch.tensor([1.0], dtype=torch.bfloat16),
    torch.tensor([1j]),
    torch.tensor([1j]).conj(),
]


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(range(len(CONSTANTS)), 2)))
def test_different_constants_have_different_keys(a: int, b: int) -> None:
    assert constant_key(CONSTANTS[a]) != constant_key(CONSTANTS[b])


def test_a_constant_has_one_key_however_it_lies() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert constant_key(x) == constant_key(x.t().contiguous().t())
    known = constant_key(x)
    with FakeTensorMode():
        assert constant_key(x) == known


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(2, 3, dtype=torch.float64),
        torch.empty(3, 2),
        torch.empty(3, 2).t(),
        torch.empty(7)[1:].view(2, 3),
        torch.empty(2, 3, requires_grad=True),
        torch.empty(2, 3, device="meta"),
    ],
    ids=["dtype", "sizes", "strides", "offset", "requires_grad", "device"],
)
def test_tensor_key_differs_by_spec(other: torch.Tensor) -> None:
    assert tensor_key(torch.empty(2, 3), strides=True) != tensor_key(other, strides=True)


def test_marks_are_part_of_a_spec() -> None:
    x = torch.empty(2, dtype=torch.complex64)
    assert len({tensor_key(t, strides=True) for t in (x, x.conj(), torch._neg_view(x))}) == 3


def test_equal_constants_are_one_op_and_others_are_not() -> None:
    with Graph():
        one = ge.Const(np.array([1.0]))
        assert ge.Const(np.array([1.0])) is one
        assert ge.Const(np.array([1 + 1e-12])) is not one
        assert ge.Const(0.0) is not ge.Const(-0.0)
        # The same 32 bits, but size arithmetic reads all of a Python number.
        assert ge.Const(0.1) is not ge.Const(0.1 + 1e-12)
        assert ge.Const([1, 2]) is ge.Const([1, 2])


@pytest.mark.parametrize("codegen", ["reference", "eager", "auto"])
def test_signed_zeros_are_two_numbers(codegen: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return 1 / (x * 0.0), 1 / (x * -0.0), 1 / torch.full_like(x, 0.0), 1 / torch.full_like(x, -0.0)

    x = torch.ones(3)
    got = torch.compile(fn, backend=backend("max-autotune", codegen))(x)
    assert [t.tolist() for t in got] == [t.tolist() for t in fn(x)]


def test_capture_keys_tell_numbers_apart() -> None:
    key = key_function((KeyPart(0, "number"),))
    assert len({key([number]) for number in (0.0, -0.0, 0, False, True, 1, 1.0)}) == 7
    assert key([math.nan]) == key([math.nan])
