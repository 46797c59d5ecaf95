"""What the declaration of a kernel says, and that a wrong one is an error at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

from torchair.core.errors import BadKernel
from torchair.core.kernel_params import Int, Ints, Number, Operand, ParamKind
from torchair.core.registries.lazy_registry import LazyRegistry
from torchair.engine import registry
from torchair.engine.registry import Value, kernel
from torchair.ge.host import Host

Table = LazyRegistry[Any, registry.Kernel]


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table of kernels of our own."""
    mine: Table = LazyRegistry("torchair.engine.all_kernels")
    monkeypatch.setattr(registry, "_kernels", mine)
    return mine


def annotated(hint: Any) -> Callable[..., Any]:
    def add(x1, x2):
        return x1

    add.__annotations__ = {"x2": hint}
    return add


@pytest.mark.parametrize(
    ("hint", "takes"),
    [
        (Ints, ParamKind.INTS),
        ("Ints", ParamKind.INTS),
        ("Ints | None", ParamKind.INTS),
        (Optional[Ints], ParamKind.INTS),  # noqa: UP045  the old spelling means the same
        ("registry.Value", ParamKind.VALUE),
        (Int, ParamKind.INT),
        (Number, ParamKind.NUMBER),
        (Operand, ParamKind.OPERAND),
        (Operand | None, ParamKind.OPERAND),
        (Value | None, ParamKind.VALUE),
        (Host, ParamKind.HOST),
        ("Host | None", ParamKind.HOST),
        (torch.Tensor, ParamKind.TENSOR),
        ("list[torch.Tensor]", ParamKind.TENSOR),
    ],
)
def test_the_annotation_is_what_it_means_not_how_it_is_spelled(
    table: Table, hint: Any, takes: ParamKind
) -> None:
    kernel("Add")(annotated(hint))
    assert table["Add", None].takes == (ParamKind.TENSOR, takes)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (list[int], r"the kernel add declares its input 'x2' as list\[int\], which is no form"),
        ("int", "declares its input 'x2' as <class 'int'>"),
        (Any, "declares its input 'x2' as typing.Any"),
        (None, "declares its input 'x2' as <class 'NoneType'>"),
        ("Ints | Host", "declares its input 'x2' as"),
        ("Intz", "has an annotation that means nothing: name 'Intz' is not defined"),
        ("registry.Intz", "has an annotation that means nothing: .*'Intz'"),
    ],
)
def test_kernel_with_meaningless_annotation_is_refused(table: Table, hint: Any, message: str) -> None:
    with pytest.raises(BadKernel, match=message) as caught:
        kernel("Add")(annotated(hint))
    assert f"at     {__file__}:" in str(caught.value)
    assert "Ints, Int, Number, Operand" in str(caught.value)
    assert not table


def test_inputs_and_attributes_are_those_of_the_op() -> None:
    with pytest.raises(BadKernel, match=r"the kernel alone takes 1 inputs, Add has 2"):

        @kernel("Add")
        def alone(x1):
            return x1

    with pytest.raises(BadKernel, match=r"wants attributes that Add does not have: \['axis'\]"):

        @kernel("Add")
        def along(x1, x2, *, axis):
            return x1
