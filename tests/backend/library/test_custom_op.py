"""`torchair.op`: one annotated function is an operator everywhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair import ge
from torchair.core.errors import BadConverter, NotPossible
from torchair.engine.user_kernels import unregister_kernel
from torchair.ge.builder import torch_kernel_binding
from torchair.ge.builder.torch_kernel_binding import CALL
from torchair.ge.prototype import catalogue, prototype


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
def test_custom_op_compiles_in_both_modes(mode: str, codegen: str, dynamic: bool) -> None:
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
        monkeypatch.setattr(torch_kernel_binding, "find_target", lambda name: None)
    loaded = torchair.load_air(tmp_path / "export.air")
    types = [op.type for op in loaded.graph.ops]
    assert {"UserOpsScale", "UserOpsMany", "UserOpsBump", "UserOpsNote"} <= set(types)
    assert any(CALL in op.attrs for op in loaded.graph.ops) != by_kernels
    check(loaded, shape, (6, 8))


def test_custom_op_registers_its_prototype() -> None:
    assert str(prototype("UserOpsScale")) == "UserOpsScale(x, y?; k: Float = 2.0) -> y_"
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


def user_ops_number(x: Tensor, k: int) -> Tensor:
    return x * k


def with_a_device(x: Tensor, where: torch.device) -> Tensor:
    return x + 1


def default_inf(x: Tensor, k: float = float("inf")) -> Tensor:
    return x.clamp(max=k)


def default_quote(x: Tensor, k: str = 'say "hi"') -> Tensor:
    return x + 1


def default_list(x: Tensor, ks: Sequence[int] = (1, 2)) -> Tensor:
    return x * sum(ks)


def with_a_list(x: Tensor) -> list[Tensor]:
    return [x + 1]


def by_name(x: Tensor, *, out: Tensor) -> None:
    out.copy_(x)


def with_any_number(*xs: Tensor) -> Tensor:
    return xs[0]


def by_place(x: Tensor, /) -> Tensor:
    return x + 1


def with_texts(x: Tensor, names: list[str]) -> Tensor:
    return x + 1


class Callable:
    def __call__(self, x: Tensor) -> Tensor:
        return x + 1


WRITES = {"mutates_args": ("x",)}
REFUSED: dict[str, tuple[Any, str | None, dict[str, Any], type[Exception], str]] = {
    "annotation": (without_annotation, None, {}, BadConverter, "must have a type annotation"),
    "taken": (add, None, {"ge_op": "Add"}, NotPossible, "choose another with ge_op"),
    "no name": (add, None, {"ge_op": "1 bad("}, NotPossible, "no name of an IR op"),
    "device": (with_a_device, None, {}, NotPossible, "where: Device"),
    "varargs": (with_any_number, None, {}, BadConverter, r"no \*args"),
    "by place": (by_place, None, {}, BadConverter, "no /"),
    "texts": (with_texts, None, {}, BadConverter, r"names.*\n.*\n +next +take tensors"),
    "blank": (add, "no name", {}, BadConverter, "namespace::name"),
    "parts": (add, "a::b::c", {}, BadConverter, "namespace::name"),
    "object": (Callable(), "user_ops_test::refused", {}, BadConverter, "write one that calls it"),
    "partial": (functools.partial(add), "user_ops_test::refused", {}, BadConverter, "write one that calls"),
    "inf": (default_inf, None, {}, BadConverter, r"got +inf\n.*k: Optional\[float\] = None"),
    "quote": (default_quote, None, {}, BadConverter, r"k: Optional\[str\] = None"),
    "default list": (default_list, None, {}, BadConverter, r"Optional\[Sequence\[int\]\] = None"),
    "written list": (with_a_list, None, WRITES, BadConverter, r"writes x and returns List\[Tensor\]"),
    "unknown": (add, None, {"mutates_args": ("z",)}, BadConverter, r"got +'z'\n +near +x\n"),
    "text": (add, None, {"mutates_args": "x"}, BadConverter, r"mutates_args=\('x',\)"),
    "number": (user_ops_number, None, {"mutates_args": ("k",)}, BadConverter, "leave it out of mutates_args"),
    "by name": (by_name, None, {"mutates_args": ("out",)}, BadConverter, r"put it before the \*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_custom_op_refuses_unsupported_signature(case: str) -> None:
    fn, name, options, error, what = REFUSED[case]
    with pytest.raises(error, match=what):
        torchair.op(name, **options)(fn)


def test_without_an_ir_op() -> None:
    made = torchair.op("user_ops_test::place", ge_op=None)(with_a_device)
    assert torch.equal(made(torch.ones(2), torch.device("cpu")), torch.full((2,), 2.0))


# Names


@torchair.op("user_ops_test::user_ops_written_y", mutates_args=("y",))
def written_y(y: Tensor, x: Tensor) -> Tensor:
    y.add_(1)
    return x * 2


@torchair.op("user_ops_test::user_ops_written_y_1", mutates_args=("y_1",))
def written_y_1(y_1: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    y_1.add_(1)
    return x * 2, x * 3


@pytest.mark.parametrize("target", [written_y, written_y_1], ids=["one result", "two"])
def test_an_argument_called_as_results_are(target: Any) -> None:
    x, y = torch.randn(4), torch.randn(4)
    again = y.clone()
    torch.testing.assert_close(compile_fn(target, fullgraph=True, reset=True)(y, x), target(again, x))
    torch.testing.assert_close(y, again)


def test_results_have_names_of_their_own() -> None:
    assert str(prototype("UserOpsWrittenY")) == "UserOpsWrittenY(y, x) -> y_, y"
    assert str(prototype("UserOpsWrittenY1")) == "UserOpsWrittenY1(y_1, x) -> y__0, y__1, y_1"


def test_a_short_name_that_is_taken() -> None:
    def relu(x: Tensor) -> Tensor:
        return x * 7

    def same(x: Tensor) -> Tensor:
        return x * 8

    ops = torchair.op("user_ops_a::relu")(relu), torchair.op("user_ops_a::user_ops_same")(relu)
    ops = *ops, torchair.op("user_ops_b::user_ops_same")(same)
    assert {"UserOpsARelu", "UserOpsSame", "UserOpsBUserOpsSame"} <= set(catalogue())
    x = torch.randn(4)
    torch.testing.assert_close(
        compile_fn(lambda x: (*(op(x) for op in ops), x.relu()), fullgraph=True, reset=True)(x),
        (x * 7, x * 7, x * 8, x.relu()),
    )


def test_a_definition_that_torch_refuses_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.library, "custom_op", refuse)
        with pytest.raises(BadConverter, match=r"torch refuses .*: not so"):
            torchair.op("user_ops_test::user_ops_left")(user_ops_number)
    assert "UserOpsLeft" not in catalogue()
    torchair.op("user_ops_test::user_ops_left")(add)
    assert str(prototype("UserOpsLeft")) == "UserOpsLeft(x) -> y"


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("not so\nand pages of advice")


def test_an_operator_is_defined_anew() -> None:
    x = torch.randn(4)
    before = torchair.op("user_ops_test::user_ops_anew")(add)
    torch.testing.assert_close(compile_fn(lambda x: before(x), fullgraph=True, reset=True)(x), x + 1)
    made = torchair.op("user_ops_test::user_ops_anew")(user_ops_number)
    assert str(prototype("UserOpsAnew")) == "UserOpsAnew(x; k: Int = None) -> y"
    torch.testing.assert_close(compile_fn(lambda x: made(x, 3), fullgraph=True, reset=True)(x), x * 3)
    with pytest.raises(NotPossible, match="already"):
        torchair.op("user_ops_test::user_ops_other", ge_op="UserOpsAnew")(add)


def test_a_default_with_marks_of_prototypes() -> None:
    def user_ops_marks(x: Tensor, s: str = "a; b: (c) -> d, e: f") -> Tensor:
        return x * len(s)

    made = torchair.op(user_ops_marks)
    x = torch.randn(4)
    torch.testing.assert_close(compile_fn(made, fullgraph=True, reset=True)(x), x * 20)


# Numbers that may be left out


@torchair.op("user_ops_test::user_ops_maybe")
def maybe(x: Tensor, k: Optional[float] = 1.5) -> Tensor:  # noqa: UP045
    return x * (100.0 if k is None else k)


def test_none_is_not_the_default(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return maybe(x), maybe(x, None), maybe(x, k=2.0)

    x = torch.randn(4)
    torchair.dynamo_export(x, model=Net(), export_path=str(tmp_path))
    ops = [op for op in torchair.load_air(tmp_path / "export.air").graph.ops if op.type == "UserOpsMaybe"]
    assert [op.attrs["k"].value if "k" in op.attrs else None for op in ops] == [1.5, None, 2.0]
    ge.register_kernel("UserOpsMaybe", lambda x, *, k: x * (100.0 if k is None else k))
    try:
        torch.testing.assert_close(compile_fn(Net(), fullgraph=True, reset=True)(x), Net()(x))
    finally:
        unregister_kernel("UserOpsMaybe")
