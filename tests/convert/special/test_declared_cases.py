"""The table of declared cases: what a row may hold, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from torchair.convert.special.declared_cases import TABLE, rows_of
from torchair.core.errors import BadConverter


def read(**row: Any) -> tuple[list[Any], list[Any]]:
    ((ops, cases),) = rows_of({"pointwise": [row]})
    return ops, cases


@pytest.mark.parametrize(
    "case",
    [
        "",
        "F32(2, 3), F16(3, value_range=(-0.5, 0.5)), alpha=-2",
        "[F32(2), C64()], None, 'sum', True",
        "T([[1.0, nan], [-inf, 2.0]], dtype=torch.float64)",
    ],
)
def test_a_case_is_what_is_written_between_the_brackets_of_support(case: str) -> None:
    ops, cases = read(ops=["aten.add.Tensor", "aten.sum.default"], cases=[case])
    assert ops == [torch.ops.aten.add.Tensor, torch.ops.aten.sum.default]
    assert [repr(each) for each in cases] == [f"Support({case})"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ops": ["aten.add.Tensors"], "cases": []}, "'Tensors'"),
        ({"ops": ["aten.add"], "cases": []}, "aten.add is not an op overload"),
        ({"ops": ["aten.abs.default"]}, "'cases'"),
        ({"ops": ["aten.abs.default"], "cases": "F32(2)"}, "'F' is not a value"),
        ({"ops": ["aten.abs.default"], "cases": ["F32(2"]}, "never closed"),
        ({"ops": ["aten.abs.default"], "cases": ["F33(2)"]}, "'F33.2.' is not a value"),
        ({"ops": ["aten.abs.default"], "cases": ["F32(2, range=3)"]}, "range"),
        ({"ops": ["aten.abs.default"], "cases": ["torch.randn(2)"]}, "'torch.randn.2.' is not a value"),
        ({"ops": ["aten.abs.default"], "cases": ["dtype=torch.abs"]}, "'torch.abs' is not a value"),
        ({"ops": ["aten.abs.default"], "cases": ["F32(2)) + Support(1"]}, "is not the argument list"),
    ],
)
def test_what_is_no_row_is_refused_with_its_place_and_text(row: Any, said: str) -> None:
    with pytest.raises(BadConverter, match=said) as raised:
        read(**row)
    assert raised.value.details["at"] == "declared_cases.json, pointwise"
    assert json.loads(raised.value.details["got"]) == row


def test_no_op_has_two_rows() -> None:
    """Who looks for the cases of an op finds all of them in one place."""
    found = [op for ops, _ in rows_of(json.loads(TABLE.read_text())) for op in ops]
    assert len(found) == len(set(found))
