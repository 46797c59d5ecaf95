"""`torchair.op`: one annotated function is an operator everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

import torchair
from tests.slow import slow
from torchair.core.errors import BadConverter, NotPossible
from torchair.ge.face import CALL
from torchair.ge.prototype import prototype


@torchair.op
def user_ops_scale(x: Tensor, y: Optional[Tensor], k: float = 2.0) -> Tensor:  # noqa: UP045 - as torch wants it
    return x * k if y is None else x * k + y


def many_fake(xs: Any, dtype: Any, n: int) -> Any:
    return [x.new_empty(x.shape, dtype=dtype or x.dtype) for x in xs], xs[0].new_empty(())


@torchair.op("user_ops_test::user_ops_many", fake=many_fake)
def many(xs: list[Tensor], dtype: Optional[torch.dtype], n: int) -> tuple[list[Tensor], Tensor]:  # noqa: UP045
    """It looks at data, so it has a fake function."""
    total = sum(float(x.numpy().sum()) for x in xs)
    return [x.to(dtype or x.dtype) * n for x in xs], torch.tensor(total)


@torchair.op("user_ops_test::user_ops_bump", mutates_args=("a", "c"), fake=lambda a, b, c: b.new_empty(()))
def bump(a: Tensor, b: Tensor, c: list[Tensor]) -> Tensor:
    a.add_(b)
    for part in c:
        part.mul_(2)
    return b.sum()


@torchair.op("user_ops_test::user_ops_note", mutates_args=("a",))
def note(a: Tensor, k: int = 3) -> None:
    a.mul_(k)


class Model(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        a, b = user_ops_scale(x, None), user_ops_scale(x, y, 3.0)
        made, total = many([a, b], torch.float64, 2)
        summed = bump(x, y * 1.5, [y[0], y[1]])
        note(y[:, ::2])
        return a, b, made, total, summed, y * 2


def check(run: Any, *shapes: tuple[int, int]) -> None:
    for shape in shapes:
        given = torch.randn(*shape), torch.randn(*shape)
        again = tuple(value.clone() for value in given)
        torch.testing.assert_close(run(*given), Model()(*again))
        torch.testing.assert_close(given, again)


@pytest.mark.parametrize("dynamic", [slow(False), True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("mode", "codegen"),
    [("max-autotune", "eager"), slow("max-autotune", "reference"), ("npugraph_ex", "eager")],
)
def test_both_modes(mode: str, codegen: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    backend = torchair.get_npu_backend(compiler_config=config)
    run = torch.compile(Model(), backend=backend, dynamic=dynamic, fullgraph=True)
    check(run, (4, 6), (5, 8))


@pytest.mark.parametrize("by_kernels", [False, True], ids=["by torch", "by kernels"])
def test_exported_and_loaded(by_kernels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 6)
    args = torch.randn(*shape), torch.randn(*shape)
    torchair.dynamo_export(*args, model=Model(), export_path=str(tmp_path), dynamic=True)
    if by_kernels:
        # As where the calls are not known: what is left is the prototypes and their kernels.
        monkeypatch.setattr("torchair.ge.face.find_target", lambda name: None)
    loaded = torchair.load_air(tmp_path / "export.air")
    types = [op.type for op in loaded.graph.ops]
    assert {"UserOpsScale", "UserOpsMany", "UserOpsBump", "UserOpsNote"} <= set(types)
    assert any(CALL in op.attrs for op in loaded.graph.ops) != by_kernels
    check(loaded, shape, (6, 8))


def test_prototypes() -> None:
    assert str(prototype("UserOpsScale")) == "UserOpsScale(x, y?; k: Float = 2.0) -> y"
    assert str(prototype("UserOpsMany")) == "UserOpsMany(xs*; dtype: Type = None, n: Int = None) -> y_0*, y_1"
    assert str(prototype("UserOpsBump")) == "UserOpsBump(a, b, c*) -> y, a, c*"
    assert str(prototype("UserOpsNote")) == "UserOpsNote(a; k: Int = 3) -> a"


def test_it_is_an_operator_of_its_package() -> None:
    x = torch.randn(3)
    assert torch.equal(user_ops_scale(x, None), torch.ops.tests.user_ops_scale(x, None))


def without_annotation(x, k):
    return x


def add(x: Tensor) -> Tensor:
    return x + 1


def with_a_device(x: Tensor, where: torch.device) -> Tensor:
    return x + 1


@pytest.mark.parametrize(
    ("fn", "name", "error", "what"),
    [
        (without_annotation, None, BadConverter, "must have a type annotation"),
        (add, None, NotPossible, "choose another with ge_op"),
        (with_a_device, None, NotPossible, "where: Device"),
        (add, "no name", BadConverter, "namespace::name"),
        (add, "a::b::c", BadConverter, "namespace::name"),
    ],
    ids=["annotation", "taken", "device", "blank", "parts"],
)
def test_refused(fn: Any, name: str | None, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        torchair.op(name)(fn)


def test_without_an_ir_op() -> None:
    made = torchair.op("user_ops_test::place", ge_op=None)(with_a_device)
    assert torch.equal(made(torch.ones(2), torch.device("cpu")), torch.full((2,), 2.0))
