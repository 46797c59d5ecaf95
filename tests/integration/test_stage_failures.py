"""Nothing is fatal: each stage is made to raise, and the call is still right. What failed is said."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

import torchair
from torchair import ge
from torchair.backend.pipeline import compile as backend
from torchair.backend.pipeline import generate, interpreter, ir
from torchair.backend.settings.settings import Settings
from torchair.codegen import eager as eager_codegen
from torchair.convert.base import registry
from torchair.core.errors import BadAttribute, BadConverter, BadGraph, BadPass, DegradedWarning
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.engine import evaluate as evaluating
from torchair.engine import lower as lowering
from torchair.engine import registry as kernels
from torchair.passes.patterns.sets import registry as table

aten = torch.ops.aten
GRAPH = Settings.of({"engine_config.codegen": "eager"})
CAPTURE = Settings.of({"mode": "npugraph_ex", "engine_config.codegen": "eager"})
RUN_BY = {
    "FX_PASSES": (backend, GRAPH),
    "CAPTURE_PASSES": (backend, CAPTURE),
    "GE_PASSES": (ir, GRAPH),
    "LOWERED_PASSES": (generate, GRAPH),
}
PASSES = [
    (name, place)
    for name, (module, _) in RUN_BY.items()
    for place, step in enumerate(getattr(module, name))
    if "custom" not in step.title
]


def model(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Views, a product, an update of an input, and results that are views of each other."""
    made = (x.t() @ y).sin() + x.t().sum()
    y.copy_(y * 2)
    return [made, made[1:], x.t()]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator), torch.randn(4, 5, generator=generator)]


def check(settings: Settings, fn: Callable[..., Any] = model) -> Any:
    """Compile and run twice; values, layouts, the update of the input and aliases are eager's. The runner."""
    gm = make_fx(fn)(*inputs())
    runner = backend.compile_fx(gm, inputs(), settings)
    for _ in range(2):
        given, wanted = inputs(), inputs()
        got, want = runner.run(*given), fn(*wanted)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(given, wanted)
        assert [t.stride() for t in got] == [t.stride() for t in want]
        if fn is model:
            assert got[0].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()
            assert got[2].data_ptr() == given[0].data_ptr()
    return runner


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test a compile without a fault is clean again: no warning, no detour."""
    yield
    for settings in (GRAPH, CAPTURE):
        assert check(settings).conversion.detours == []


def detours(runner: Any) -> list[str]:
    return [reason.op for reason in runner.conversion.detours]


@pytest.mark.parametrize(("name", "place"), PASSES)
def test_failing_pass_is_skipped_with_warning(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, settings = RUN_BY[name]
    listed = getattr(module, name)
    step = listed[place]

    def spoil(graph: Any, context: Any) -> int:
        """Leave a graph that nobody can use."""
        if isinstance(graph, fx.GraphModule):
            graph.graph.output_node().args = ((),)
        else:
            graph.results.clear()
        raise RuntimeError("on purpose")

    wrong = dataclasses.replace(step, fn=spoil, name=step.title, on="", unless="")
    monkeypatch.setattr(module, name, (*listed[:place], wrong, *listed[place + 1 :]))
    with pytest.warns(DegradedWarning, match=f"pass {step.title}: .*on purpose"):
        runner = check(settings)
    assert detours(runner) == [f"pass {step.title}"]
    monkeypatch.undo()


def test_a_pass_that_leaves_an_invalid_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ir.GE_PASSES
    step = dataclasses.replace(
        listed[0], fn=lambda graph, context: graph.ops.pop(0) and 1, name="spoils", on="", unless=""
    )
    monkeypatch.setattr(ir, "GE_PASSES", (step, *listed))
    with pytest.warns(DegradedWarning, match="pass spoils"):
        runner = check(dataclasses.replace(GRAPH, verify=True))
    assert detours(runner) == ["pass spoils"]
    monkeypatch.undo()


def replace_converter(monkeypatch: pytest.MonkeyPatch, target: Any, fn: Callable[..., Any]) -> None:
    monkeypatch.setitem(registry._builtin, target, registry._describe(fn, None))


def _raise(error: Exception) -> Callable[..., Any]:
    def fn(self: Any) -> Any:
        ge.Cos(ge.Neg(self))
        raise error

    return fn


@pytest.mark.parametrize(
    "fn",
    [
        _raise(RuntimeError("on purpose")),
        _raise(BadAttribute("on purpose")),
        _raise(BadGraph("on purpose")),
        _raise(NotImplementedError("on purpose")),
        lambda self: ge.Cast(self, dst_type=3),
        lambda self: [self, self],
        lambda self: ge.NoSuchOp(self),
    ],
    ids=["raises", "bad attribute", "bad graph", "declines", "wrong dtype", "too many", "unknown op"],
)
@pytest.mark.parametrize("codegen", ["eager", "reference"])
def test_failing_converter_falls_back_to_fx_node(
    fn: Callable[..., Any], codegen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_converter(monkeypatch, aten.sin.default, fn)
    runner = check(dataclasses.replace(GRAPH, codegen=codegen))
    # The next way: torch takes it apart, into a prim that has a converter of its own.
    assert [reason.op for reason in runner.conversion.decomposed] == ["aten.sin.default"]
    assert runner.conversion.fallbacks == []
    assert "aten.mm.default" in runner.conversion.converted
    monkeypatch.undo()


def test_a_decomposition_that_fails_takes_its_views_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads `x.t()` and returns something else than the op: later readers of `x.t()` must not find what
    was taken back.
    """

    def wrong(self: torch.Tensor) -> torch.Tensor:
        return aten.neg.default(aten.t.default(self)).double()

    monkeypatch.setitem(registry._parts, aten.sin.default, wrong)
    monkeypatch.delitem(registry._builtin, aten.sin.default)

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a = x.sin()
        return [a, x.t().neg(), x.t() @ y]

    with pytest.warns(DegradedWarning, match=r"aten.sin.default .*its decomposition failed"):
        runner = check(GRAPH, fn)
    reasons = {reason.op: reason.why for reason in runner.conversion.fallbacks}
    assert "its decomposition failed" in reasons["aten.sin.default"]
    # What was converted for nothing is not counted.
    assert runner.conversion.converted["aten.neg.default"] == 1
    monkeypatch.undo()


@pytest.mark.parametrize("fails", ["inferred", "lowered", "run"])
def test_failing_kernel_falls_back_to_fx_node(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meaning of an IR op raises: where shapes are inferred, where it is lowered, or in a run."""
    row = kernels._kernels["Sin", None]
    state = {"fails": fails == "inferred"}

    def sin(x: torch.Tensor) -> torch.Tensor:
        if state["fails"]:
            raise ValueError("on purpose")
        return torch.sin(x)

    monkeypatch.setitem(kernels._kernels, ("Sin", None), dataclasses.replace(row, fn=sin))
    convert, lower_graph = backend.convert_to_ir, backend.lower_to_aten

    def to_ir(*args: Any) -> Any:
        state["fails"] = fails == "inferred"
        made = convert(*args)
        state["fails"] = fails == "run"
        return made

    def to_aten(*args: Any) -> Any:
        state["fails"] = fails == "lowered"
        return lower_graph(*args)

    monkeypatch.setattr(backend, "convert_to_ir", to_ir)
    monkeypatch.setattr(backend, "lower_to_aten", to_aten)
    if fails == "inferred":
        with pytest.warns(DegradedWarning, match=r"prims.sin.default .*on purpose"):
            runner = check(GRAPH)
        assert [reason.op for reason in runner.conversion.fallbacks] == ["prims.sin.default"]
    elif fails == "lowered":
        with pytest.warns(DegradedWarning, match=r"kernel of Sin failed.*carried through"):
            runner = check(GRAPH)
        assert [reason.op for reason in runner.conversion.fallbacks] == ["aten.sin.default"]
        assert "aten.mm.default" in runner.conversion.converted
    else:
        with pytest.warns(DegradedWarning, match="the reference engine failed"):
            check(dataclasses.replace(GRAPH, codegen="reference"))
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("module", "name"),
    [(ir, "convert"), (ir, "lower"), (interpreter, "interpret"), (lowering, "_lay_out")],
)
def test_a_whole_stage(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(module, name, fail)
    with pytest.warns(DegradedWarning, match="on purpose"):
        check(dataclasses.replace(GRAPH, codegen="reference" if name == "interpret" else "eager"))
    monkeypatch.undo()


def test_wrong_layout_of_a_stage_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering forgets what it promised: strides by a copy, an alias by a view of its input."""
    monkeypatch.setattr(lowering, "_lay_out", lambda state, results, outputs: None)
    view = lowering._view
    monkeypatch.setattr(
        lowering, "_view", lambda state, layout: lowering._own(state, view(state, layout), None)
    )

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = (x * 2).unfold(0, 2, 1)
        return [made, x.unsqueeze(0), (y + 1)[::2], made[0]]

    with pytest.warns(DegradedWarning, match="output 0 has wrong strides"):
        check(GRAPH, fn)
    monkeypatch.undo()


@pytest.mark.parametrize("settings", [GRAPH, CAPTURE], ids=["graph", "capture"])
def test_every_code_generator(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort is FX itself."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(eager_codegen, "build", fail)
    with pytest.warns(DegradedWarning, match="eager could not compile"):
        runner = check(settings)
    assert runner.program.kind == "fx"
    monkeypatch.undo()


def test_the_users_converter_is_an_error() -> None:
    @torchair.register_fx_node_ge_converter(aten.sin.default)
    def sin(self: Any) -> Any:
        raise ValueError("mine")

    try:
        with pytest.raises(BadConverter, match="mine"):
            check(GRAPH)
        # Also where one of ours, or a decomposition, calls it.
        with pytest.raises(BadConverter, match="mine"):
            check(GRAPH, lambda x, y: [torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))])
    finally:
        registry.unregister(aten.sin.default)


def test_the_users_pass_is_an_error() -> None:
    def mine(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        raise ValueError("mine")

    for settings in (GRAPH, CAPTURE):
        with pytest.raises(BadPass, match="mine"):
            check(dataclasses.replace(settings, user_post_pass=mine))


def test_the_users_replacement_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "OF_TORCHAIR", table.RuleSet("torchair", ""))

    def refuse(match: Any) -> bool:
        raise ValueError("mine")

    torchair.register_replacement(
        lambda x: torch.sin(x), lambda x: torch.cos(x), [torch.empty(2)], extra_check=refuse
    )
    with pytest.raises(BadPass, match="mine"):
        check(GRAPH)
    monkeypatch.undo()


def test_user_program_error_is_raised_unchanged() -> None:
    """What eager refuses is refused: no other way is tried, and no input is written twice."""

    def fn(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        return [x.index_select(0, index)]

    x, index = torch.randn(3, 2), torch.tensor([0])
    for codegen in ("eager", "reference"):
        settings = Settings.of({"engine_config.codegen": codegen})
        runner = backend.compile_fx(make_fx(fn)(x, index), [x, index], settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegradedWarning)
            with pytest.raises((IndexError, RuntimeError), match="out of range"):
                runner.run(x, torch.tensor([7]))


def test_evaluation_uses_the_patched_kernel() -> None:
    """The tests above replace rows of the table of kernels: this is the table that is asked."""
    assert evaluating.find_kernel is kernels.find_kernel
