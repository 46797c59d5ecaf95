"""The built-in replacements: each family fires, with the numbers of the chain it replaces, and stays away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.passes.graphs import calls, in_scope, node, ops, traced
from torchair.passes.patterns.sets import registry
from torchair.passes.patterns.sets.builtin import Rule, rules
from torchair.passes.patterns.sets.registry import apply_pattern_passes

npu = torch.ops.npu
HALF = torch.float16
EPSILONS = pytest.mark.parametrize("epsilon", [(), (1e-4,)], ids=["default", "epsilon"])


def tensors(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = (torch.randn(shape), torch.randn(shape), torch.randn(shape[-1]))
    return tuple(x.half() for x in made)  # type: ignore[return-value]


def check(fn: Callable[..., Any], args: tuple[Any, ...], into: str, tracing: str = "fake") -> None:
    """The chain becomes one op, with the same results up to one rounding."""
    gm, ctx = traced(fn, *args, tracing=tracing)
    assert apply_pattern_passes(gm, ctx) == 1
    assert into in calls(gm)
    assert "npu.npu_add_rms_norm.default" not in calls(gm)
    for got, want in zip(gm(*args), fn(*args), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


@EPSILONS
@pytest.mark.parametrize("uses_sum", [False, True])
@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_norm_and_smooth_quantisation(epsilon: tuple[float, ...], uses_sum: bool, tracing: str) -> None:
    def fn(x1: Any, x2: Any, gamma: Any, smooth: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        quantised, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth)
        return (quantised, scale, x * 2) if uses_sum else (quantised, scale)

    args = (*tensors(4, 16), torch.rand(16).half() + 0.5)
    check(fn, args, "npu.npu_add_rms_norm_dynamic_quant.default", tracing)


@EPSILONS
@pytest.mark.parametrize("rows", [6, -1])
def test_norm_and_quantisation_of_merged_rows(epsilon: tuple[float, ...], rows: int) -> None:
    def fn(x1: Any, x2: Any, gamma: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        quantised, scale = npu.npu_dynamic_quant(y.view(rows, 16))
        return quantised, scale.view(-1, 1), x * 2

    check(fn, tensors(2, 3, 16), "npu.npu_add_rms_norm_dynamic_quant.default")


@EPSILONS
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("spelling", ["to", "npu"])
def test_norm_and_cast(epsilon: tuple[float, ...], flat: bool, spelling: str) -> None:
    def fn(x1: Any, x2: Any, gamma: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        viewed = y.view(-1, 16) if flat else y
        wide = viewed.to(torch.float32) if spelling == "to" else npu._npu_dtype_cast(viewed, torch.float32)
        return wide, y * 2, x * 2

    check(fn, tensors(2, 3, 16), "npu.npu_add_rms_norm_cast.default")


LEFT, TURNED, RIGHT = torch.randn(3, 4, 128), torch.randn(4, 3, 128), torch.randn(3, 128, 256)
PRODUCTS = {
    "bmm": (LEFT, lambda a, b: torch.bmm(a, b).transpose(0, 1)),
    "view": (LEFT, lambda a, b: torch.bmm(a, b).view(3, 4, 256).transpose(0, 1)),
    "turned": (TURNED, lambda a, b: torch.bmm(a.transpose(0, 1).expand(3, 4, 128), b).transpose(0, 1)),
    "turned_view": (
        TURNED,
        lambda a, b: (
            torch.bmm(a.transpose(0, 1).expand(3, 4, 128).view(3, 4, 128), b).view(3, 4, 256).transpose(0, 1)
        ),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_with_transpose_becomes_one_call(name: str) -> None:
    left, fn = PRODUCTS[name]
    check(lambda a, b: (fn(a, b),), (left, RIGHT), "npu.npu_transpose_batchmatmul.default")
    gm, ctx = traced(fn, left, RIGHT)
    apply_pattern_passes(gm, ctx)
    assert len(calls(gm)) == 1


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        pytest.param(torch.randn(3, 4, 64), torch.randn(3, 64, 256), (0, 1), id="inner_dim"),
        pytest.param(torch.randn(3, 4, 128), torch.randn(3, 128, 200), (0, 1), id="last_dim"),
        pytest.param(torch.randn(3, 4, 128), torch.randn(3, 128, 256), (1, 2), id="other_dims"),
        pytest.param(LEFT.double(), RIGHT.double(), (0, 1), id="dtype"),
    ],
)
def test_products_that_stay(left: torch.Tensor, right: torch.Tensor, dims: tuple[int, int]) -> None:
    gm, ctx = traced(lambda a, b: torch.bmm(a, b).transpose(*dims), left, right)
    assert apply_pattern_passes(gm, ctx) == 0
    assert calls(gm) == ["aten.bmm.default", "aten.transpose.int"]


def norm_and_smooth(x1: Any, x2: Any, gamma: Any, smooth: Any) -> Any:
    y, _, _ = npu.npu_add_rms_norm(x1, x2, gamma)
    return npu.npu_dynamic_quant(y, smooth_scales=smooth)


SMOOTH = torch.ones(16).half()


def test_a_result_that_others_read_is_not_swallowed() -> None:
    def fn(x1: Any, x2: Any, gamma: Any, smooth: Any) -> Any:
        y, _, _ = npu.npu_add_rms_norm(x1, x2, gamma)
        return *npu.npu_dynamic_quant(y, smooth_scales=smooth), y * 2

    gm, ctx = traced(fn, *tensors(4, 16), SMOOTH)
    assert apply_pattern_passes(gm, ctx) == 0


def test_no_fusion_across_scopes() -> None:
    gm, ctx = traced(norm_and_smooth, *tensors(4, 16), SMOOTH)
    in_scope(gm, node(gm, npu.npu_dynamic_quant.default))
    assert apply_pattern_passes(gm, ctx) == 0
    enter = node(gm, ops.scope_enter.default)
    for keys, values in (
        (["_op_aicore_num", "_op_vectorcore_num"], ["4", "8"]),
        (["_deterministic_level"], ["1"]),
    ):
        enter.args = (keys, values)
        assert apply_pattern_passes(gm, ctx) == 0
    enter.args = (["_another_key"], ["1"])
    assert apply_pattern_passes(gm, ctx) == 1


def test_no_fusion_across_an_event() -> None:
    gm, ctx = traced(norm_and_smooth, *tensors(4, 16), SMOOTH)
    with gm.graph.inserting_before(node(gm, npu.npu_dynamic_quant.default)):
        gm.graph.call_function(ops.tagged_event_record.default, ("e",))
    assert apply_pattern_passes(gm, ctx) == 0


# Rules of ops that may be missing


def test_names_are_unique_and_there_are_all_families() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))
    families = {"norm_dynamic_quant": 4, "norm_flat": 4, "norm_cast": 8, "norm_quant": 4}
    assert {family: sum(name.startswith(family) for name in names) for family in families} == families
    assert len(names) == sum(families.values()) + 4


def test_a_rule_whose_op_is_missing_is_left_out() -> None:
    rule = Rule("x", None, ("npu_dynamic_quant", "no_such_op"), (), print, print, list)
    assert not rule.is_defined()


@pytest.fixture
def quant_op(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fused op of the fifth family where the library does not bring it, and a rule set of its own."""
    monkeypatch.setattr(registry, "OF_TORCHAIR", registry.RuleSet("torchair", ""))
    library = torch.library.Library("npu", "FRAGMENT")
    missing = not hasattr(npu, "npu_add_rms_norm_quant")
    if missing:
        library.define(
            "npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, "
            "Tensor? zero_points1, Tensor? scales2=None, Tensor? zero_points2=None, *, int axis=-1, "
            "float epsilon=1e-6, bool div_mode=True) -> (Tensor, Tensor, Tensor)"
        )
        library.impl("npu_add_rms_norm_quant", _norm_quant, "CompositeExplicitAutograd")
    yield
    library._destroy()


def _norm_quant(x1: Any, x2: Any, gamma: Any, scales: Any, zero: Any, *rest: Any, **kwargs: Any) -> Any:
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, kwargs.get("epsilon", 1e-6))
    made = npu.npu_quantize(y, scales, zero, 1, -1, True)
    return made, torch.empty_like(made), x


@EPSILONS
@pytest.mark.parametrize("width", [16, 15], ids=["aligned", "unaligned"])
def test_norm_and_quantisation(quant_op: None, epsilon: tuple[float, ...], width: int) -> None:
    def fn(x1: Any, x2: Any, gamma: Any, scales: Any, zero: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        return npu.npu_quantize(y, scales, zero, 1, -1, True), x * 2

    args = (*tensors(4, width), torch.ones(width).half(), torch.zeros(width).half())
    gm, ctx = traced(fn, *args)
    assert apply_pattern_passes(gm, ctx) == (1 if width == 16 else 0)
    assert ("npu.npu_add_rms_norm_quant.default" in calls(gm)) == (width == 16)
    for got, want in zip(gm(*args), fn(*args), strict=True):
        torch.testing.assert_close(got, want)
