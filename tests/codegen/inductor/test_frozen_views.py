"""Views of frozen inputs are made once: updates in place show, moves do not, other tensors have their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.codegen.tracing import trace
from tests.support.slow import slow
from torchair.codegen import CodegenOptions, build
from torchair.codegen.inductor import frozen_views
from torchair.codegen.inductor.frozen_views import take_views_out
from torchair.core.program import Program

AS_A_VIEW = "reinterpret_tensor("
"""How Inductor's code makes one."""


def layer(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.relu(torch.addmm(b, x, w.t())) * 2 + 1]


def weights() -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    return torch.nn.Parameter(torch.randn(8, 4)), torch.nn.Parameter(torch.randn(8))


def built(fn: Callable[..., Any], *args: torch.Tensor, frozen: bool = True, **rest: Any) -> Program:
    traced = trace(fn, *args, **rest)
    return build(
        "inductor", traced.gm, traced.inputs, CodegenOptions(static=range(len(args) - 1), frozen=frozen)
    )


def check(program: Program, fn: Callable[..., Any], *args: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(list(args)), fn(*args))


@pytest.mark.parametrize("dynamic", [[], [2]])
def test_views_are_made_once(dynamic: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    (w, b), x = weights(), torch.randn(3, 4)
    assert AS_A_VIEW in built(layer, w, b, x, frozen=False, dynamic=dynamic).source
    program = built(layer, w, b, x, dynamic=dynamic)
    assert AS_A_VIEW not in program.source
    check(program, layer, w, b, x)
    monkeypatch.setattr(torch.Tensor, "data_ptr", None)
    check(program, layer, w, b, torch.randn(3, 4))


def test_updates_in_place_show_and_moves_do_not() -> None:
    (w, b), x = weights(), torch.randn(3, 4)
    program = built(layer, w, b, x)
    check(program, layer, w, b, x)
    with torch.no_grad():
        w.mul_(2)
    check(program, layer, w, b, x)
    w.data.add_(1)
    check(program, layer, w, b, x)
    (before,) = layer(w.detach().clone(), b.detach(), x)
    w.data = torch.randn(8, 4)
    torch.testing.assert_close(program([w, b, x])[0], before, msg="the promise is taken at its word")


def test_other_tensors_have_views_of_their_own() -> None:
    one, two, x = weights(), weights(), torch.randn(3, 4)
    program = built(layer, *one, x)
    for given in (one, two, one, (two[0], one[1])):
        check(program, layer, *given, x)


@pytest.mark.full
def test_native_code_knows_other_tensors_too() -> None:
    one, two, x = weights(), weights(), torch.randn(3, 4)
    traced = trace(layer, *one, x)
    program = build("native", traced.gm, traced.inputs, CodegenOptions(static=[0, 1], frozen=True))
    for given in (one, two, one, (two[0], one[1])):
        check(program, layer, *given, x)


def chunks(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    left, right = w.t().chunk(2, 1)
    return [x @ left, x @ right]


def updates(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """What it reads of the weight, it reads before the update."""
    y = x @ w.t()
    w.copy_(w + 1)
    return [y]


def returns(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    seen = w.t()
    return [x @ seen, seen]


def of_a_size(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [x @ w.t()[:, : x.shape[0]]]


@pytest.mark.parametrize("fn", [chunks, returns, of_a_size])
def test_frozen_views_of_odd_kinds_equal_eager(fn: Callable[..., Any]) -> None:
    w, x = torch.randn(8, 4), torch.randn(3, 4)
    program = built(fn, w, x, dynamic=[1] if fn is of_a_size else [])
    for rows in (3, 5) if fn is of_a_size else (3, 3):
        check(program, fn, w, torch.randn(rows, 4))


def test_a_view_that_is_returned_is_one_of_the_input() -> None:
    w, x = torch.randn(8, 4), torch.randn(3, 4)
    _, seen = built(returns, w, x)([w, x])
    assert seen.data_ptr() == w.data_ptr()


def test_what_the_graph_writes_is_no_constant() -> None:
    traced = trace(updates, torch.randn(8, 4), torch.randn(3, 4))
    assert take_views_out(traced.gm, [0]) is None
    w, x = torch.randn(8, 4), torch.randn(3, 4)
    program, theirs = built(updates, w, x), w.clone()
    for _ in range(2):
        torch.testing.assert_close(program([w, x]), updates(theirs, x))
        torch.testing.assert_close(w, theirs)


def test_views_that_cost_nothing_stay() -> None:
    """In generated code a view is a way to count."""
    traced = trace(lambda w, x: [x + w.t()], torch.randn(8, 4), torch.randn(4, 8))
    assert take_views_out(traced.gm, [0]) is None


def test_as_a_module_of_its_own() -> None:
    (w, b), x = weights(), torch.randn(3, 4)
    program = built(layer, w, b, x)
    assert isinstance(program, frozen_views.WithViews)
    assert program.standalone is not None
    text = program.standalone()
    assert text is not None
    made: dict[str, Any] = {}
    exec(text, made)
    with torch.no_grad():
        torch.testing.assert_close(made["kernel"](w, b, x), layer(w, b, x))


@pytest.mark.filterwarnings("ignore:frozen_parameter")
@pytest.mark.parametrize("codegen", ["inductor", slow("native")])
def test_modules_that_share_a_graph(codegen: str) -> None:
    """And training: weights are updated in place."""
    config = torchair.CompilerConfig()
    config.experimental_config.frozen_parameter = True
    config.engine_config.codegen = codegen
    backend = torchair.get_npu_backend(compiler_config=config)
    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    runs = [torch.compile(model, backend=backend, dynamic=False) for model in models]
    x = torch.randn(3, 4)
    for _ in range(3):
        for model, run in zip(models, runs, strict=True):
            result = run(x)
            torch.testing.assert_close(result, model(x))
            (gradient,) = torch.autograd.grad(result.square().sum(), model.weight)
            with torch.no_grad():
                model.weight.sub_(0.1 * gradient)
