"""Converters made from an IR op of the same name, and the reasons why none can be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.convert.special.test_auto_functionalized import compile_verified
from torchair import ge
from torchair.convert.base.auto_converters import automatic
from torchair.engine.user_kernels import unregister_kernel

library = torch.library.Library("automatic_test", "FRAGMENT")
ops = torch.ops.automatic_test


def define(schema: str, fn: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(")[0]
    library.define(schema)
    library.impl(name, fn, "CPU")
    library.impl(name, fake, "Meta")


ge.register_prototype("AutoMul(x, y; k: Float = 1.0, j: Int = 2) -> z")
ge.register_prototype("AutoUp(x; k: Float) -> r, x")
ge.register_prototype("AutoList(x; k: Float) -> y*")
define(
    "auto_mul(Tensor x, Tensor y, float k=2.0) -> Tensor",
    lambda x, y, k=2.0: x * y * k,
    lambda x, y, k=2.0: x + 0,
)
define("auto_up(Tensor(a!) x, float k) -> Tensor", lambda x, k: x.add_(k).sum(), lambda x, k: x.new_empty(()))
define(
    "auto_up_functional(Tensor x, float k) -> (Tensor, Tensor)",
    lambda x, k: ((x + k).sum(), x + k),
    lambda x, k: (x.new_empty(()), x + 0),
)
ge.register_prototype("AutoMaybe(x; k: Float = 1.0, n: Int = None, j: Int = 2) -> y")
define(
    "auto_maybe(Tensor x, float? k=2.0, int? n=None, int? j=3) -> Tensor",
    lambda x, k=2.0, n=None, j=3: x * (100.0 if k is None else k),
    lambda x, k=2.0, n=None, j=3: x + 0,
)
ge.register_prototype("AutoCast(x; dtype: Type, of: Type = None) -> y")
define(
    "auto_cast(Tensor x, ScalarType dtype=float, ScalarType? of=None) -> Tensor",
    lambda x, dtype=torch.float32, of=None: x.to(dtype),
    lambda x, dtype=torch.float32, of=None: x.to(dtype),
)
ge.register_prototype("AutoFill(x; dtype: Type) -> x")
define(
    "auto_fill(Tensor(a!) x, ScalarType dtype=float) -> ()",
    lambda x, dtype=torch.float32: x.fill_(torch.finfo(dtype).max) and None,
    lambda x, dtype=torch.float32: None,
)
# The IR has an Add, which means something else.
define("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y, lambda x, y: x + 0)
BAD = {
    "scalar(Tensor x, Scalar k) -> Tensor": "Scalar",
    "nowhere(Tensor x) -> Tensor": "no IR op 'Nowhere' is registered",
    "auto_mul.one(Tensor x) -> Tensor": "1 tensors, but the IR op has 2 inputs",
    "auto_mul.many(Tensor x, Tensor y, float a, int b, int c) -> Tensor": "3 other parameters",
    "auto_mul.two(Tensor x, Tensor y) -> (Tensor, Tensor)": "returns 2 and writes 0, but the IR op has 1",
    "auto_mul.writes(Tensor(a!) x, Tensor y) -> ()": "writes 1 of its arguments, but the IR op writes 0",
    "auto_list(Tensor x, float k) -> Tensor": "returns a list",
}
for schema in BAD:
    library.define(schema)


def fn(x: Any) -> Any:
    y = ops.auto_mul(x, x)
    total = ops.auto_up(y, 1.0)
    return y, total, *ops.auto_up_functional(x, 3.0), ops.add(x, y)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_equal_to_eager(dynamic: bool) -> None:
    run = compile_verified(fn, "max-autotune", dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x.clone()), fn(x.clone()))


def test_what_is_emitted(tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return fn(x)

    torchair.dynamo_export(torch.randn(3, 4), model=Model(), export_path=str(tmp_path))
    graph = torchair.load_air(tmp_path / "export.air").graph
    mul, up, functional = (op for op in graph.ops if op.type.startswith("Auto"))
    assert (mul.type, mul.attrs["k"].value, "j" in mul.attrs) == ("AutoMul", 2.0, False)
    assert (up.type, functional.type) == ("AutoUp", "AutoUp")
    # A mutating IR op for an op that writes nothing works on a copy.
    assert functional.slots[0].tensor.op.type == "TensorMove"


def test_a_users_kernel_is_what_it_means() -> None:
    ge.register_kernel("AutoMul", lambda x, y, *, k, j: x * y * k + j)
    try:
        x = torch.randn(3)
        got = compile_verified(lambda x: ops.auto_mul(x, x), "max-autotune")(x)
        torch.testing.assert_close(got, x * x * 2 + 2)
    finally:
        unregister_kernel("AutoMul")


def test_a_users_kernel_for_one_device() -> None:
    x = torch.randn(3)
    for device, factor in (("cuda", 2.0), ("cpu", 100.0)):  # the op's own, that of the kernel
        ge.register_kernel("AutoMul", lambda x, y, *, k, j: x * y * 100, on=device)
        try:
            made = compile_verified(lambda x: ops.auto_mul(x, x), "max-autotune")(x)
        finally:
            unregister_kernel("AutoMul", on=device)
        torch.testing.assert_close(made, x * x * factor)


def test_none_is_not_the_default_of_the_prototype() -> None:
    ge.register_kernel("AutoMaybe", lambda x, *, k, n, j: x * (100.0 if k is None else k))
    x = torch.randn(3)
    try:
        with pytest.warns(torchair.DegradedWarning, match=r"'k' is None, but its default would be 1\.0"):
            got = compile_verified(lambda x: (ops.auto_maybe(x), ops.auto_maybe(x, None)), "max-autotune")(x)
    finally:
        unregister_kernel("AutoMaybe")
    torch.testing.assert_close(got, (x * 2, x * 100))


def test_data_types_of_schemas(tmp_path: Any) -> None:
    """Schemas of torch have numbers for them, and so has the IR: others."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            ops.auto_fill(x)
            return ops.auto_cast(x), ops.auto_cast(x, torch.float16), ops.auto_cast(x, of=torch.bool)

    x = torch.randn(3, dtype=torch.float64)
    torchair.dynamo_export(x, model=Net(), export_path=str(tmp_path))
    found = [
        op.attrs["dtype"].value
        for op in torchair.load_air(tmp_path / "export.air").graph.ops
        if "dtype" in op.attrs
    ]
    types = ge.DataType
    assert found == [types.DT_FLOAT, types.DT_FLOAT, types.DT_FLOAT16, types.DT_FLOAT]


@pytest.mark.parametrize("schema", BAD)
def test_auto_converter_refusal_gives_reason(schema: str) -> None:
    name, _, overload = schema.split("(")[0].partition(".")
    with pytest.raises(RuntimeError) as caught:
        automatic(getattr(getattr(ops, name), overload or "default"))
    assert BAD[schema] in str(caught.value)


def test_reasons_without_a_schema() -> None:
    with pytest.raises(RuntimeError, match="not an op overload"):
        automatic(ops.auto_mul)
    with pytest.raises(RuntimeError, match="torch's own"):
        automatic(torch.ops.aten.add.Tensor)


def test_auto_converter_failure_warns_and_runs_eager_op() -> None:
    library.impl("nowhere", lambda x: x * 2, "CPU")
    library.impl("nowhere", lambda x: x + 0, "Meta")
    run = compile_verified(lambda x: ops.nowhere(x) + 1, "max-autotune")
    x = torch.randn(3)
    with pytest.warns(torchair.DegradedWarning, match="no IR op 'Nowhere' is registered"):
        torch.testing.assert_close(run(x), x * 2 + 1)
