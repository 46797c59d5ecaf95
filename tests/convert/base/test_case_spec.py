"""Declared cases as data: what may stand in them, where they are kept, what tensors they describe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchair._ge_concrete_graph import fx2ge_converter, supported_declaration
from torchair._ge_concrete_graph.fx2ge_converter import declare_supported, register_fx_node_ge_converter
from torchair._ge_concrete_graph.supported_declaration import BOOL, C64, F16, F32, I64, U8, Support, T
from torchair.convert.base.case_spec import declared, forget_supported
from torchair.convert.base.registry import unregister

OP = torch.ops.aten.erf.default


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister(OP)
    forget_supported(OP)


def test_known_import_paths() -> None:
    assert {"declare_supported", "register_fx_node_ge_converter"} == set(fx2ge_converter.__all__)
    names = ["BF16", "BOOL", "C64", "F16", "F32", "F64", "I16", "I32", "I64", "I8", "Support", "T", "U8"]
    assert sorted(supported_declaration.__all__) == sorted(names)


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "F64", "I32", "I16", "I64", "I8", "U8", "C64", "BOOL"]
)
def test_typed_tensors_make_what_they_say(name: str) -> None:
    kind = getattr(supported_declaration, name)
    made = kind(2, 3).make()
    assert made.shape == (2, 3)
    assert made.dtype == kind.dtype
    assert repr(kind(2, 3)) == f"{name}(2, 3)"


def test_value_range_is_kept() -> None:
    made = F32(1000, value_range=(2.0, 3.0)).make()
    assert 2.0 <= made.min() < 2.1
    assert 2.9 < made.max() <= 3.0


def test_noise_of_bools_and_bytes_has_both_kinds_of_values() -> None:
    assert BOOL(100).make().unique().tolist() == [False, True]
    assert int(U8(100).make().max()) < 10


def test_case_spec_accepts_literals() -> None:
    assert torch.equal(T([1, 2]).make(), torch.tensor([1, 2]))
    assert T(0.5, dtype=torch.float16).make().dtype == torch.float16
    assert repr(Support(F32(2), T([1]), alpha=2)) == "Support(F32(2), T([1], dtype=None), alpha=2)"


@pytest.mark.parametrize(
    "declare",
    [
        lambda x: Support(x),
        lambda x: Support([F32(2), x]),
        lambda x: Support(alpha=x),
        lambda x: T(x),
    ],
)
def test_real_tensors_are_refused(declare) -> None:
    with pytest.raises(AssertionError, match="real tensor"):
        declare(torch.ones(2))


def test_every_element_is_a_support() -> None:
    with pytest.raises(AssertionError, match="a declared case is a Support"):
        declare_supported([Support(F32(2)), F32(2)])  # type: ignore[list-item]


def test_it_stands_above_the_register_decorator() -> None:
    with pytest.raises(AssertionError, match="stands above register_fx_node_ge_converter"):
        declare_supported([Support(F32(2))])(lambda x: x)  # type: ignore[arg-type]


def test_cases_are_found_by_prefix() -> None:
    case = Support(F16(2), C64(3))

    @declare_supported([case])
    @register_fx_node_ge_converter(OP)
    def erf(self):
        return self

    assert erf.supports == [case]
    assert (OP, case) in list(declared("aten.erf.d"))
    assert (OP, case) in list(declared("erf"))
    assert (OP, case) not in list(declared("erfc"))


def test_declaring_again_replaces() -> None:
    for size in (2, 3):
        declare_supported([Support(I64(size))])(register_fx_node_ge_converter(OP)(lambda self: self))
    assert [repr(case) for _, case in declared("erf.") if "I64" in repr(case)] == ["Support(I64(3))"]
