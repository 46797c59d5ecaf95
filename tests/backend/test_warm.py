"""A graph of Dynamo's is compiled once for all processes, and never taken for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.test_better import Quick
from tests.process import python
from torchair.backend import background, kept, warm
from torchair.backend.order import symbols_of
from torchair.core.errors import DegradedWarning

pytestmark = pytest.mark.usefixtures("warm_starts")
MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])


class Counted:
    """Compiles, and counts."""

    def __init__(self) -> None:
        self.own = warm.compile_dynamo
        self.graphs = 0
        self.before: Callable[[Any], None] = lambda inputs: None
        self.after: Callable[[Any], None] = lambda made: None

    def __call__(self, gm: Any, inputs: Any, *args: Any) -> Any:
        self.graphs += 1
        self.before(inputs)
        made = self.own(gm, inputs, *args)
        self.after(made)
        return made


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    made = Counted()
    monkeypatch.setattr(warm, "compile_dynamo", made)
    monkeypatch.setattr(warm, "EXTENSIONS", {})  # other tests have some
    return made


def new_process(function: Any, mode: str = "npugraph_ex", dynamic: bool = False, **options: Any) -> Any:
    torch.compiler.reset()
    warm.logger.forget()
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"
    for path, value in options.items():
        *parts, last = path.split("__")
        place: Any = config
        for part in parts:
            place = getattr(place, part)
        setattr(place, last, value)
    return torch.compile(function, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@MODES
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_next_process_compiles_nothing(mode: str, dynamic: bool, counted: Counted) -> None:
    with torch.no_grad():
        for model in (net(), net(), net()):
            run = new_process(model, mode, dynamic)
            for x in (X, X[:3]) if dynamic else (X,):
                for _ in range(3):
                    torch.testing.assert_close(run(x), model(x))
    assert counted.graphs == (2 if dynamic else 1), "with symbols Dynamo traces the number of the norm again"


def test_views_of_inputs_and_inputs_that_are_written(counted: Counted) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache.add_(x)
        return cache[:2], x * 2

    for _ in range(2):
        run = new_process(step)
        cache = torch.ones(4, 8)
        for times in (1, 2):
            version = cache._version
            view, doubled = run(cache, X)
            torch.testing.assert_close(cache, 1 + times * X)
            assert view.data_ptr() == cache.data_ptr()
            assert cache._version > version
            torch.testing.assert_close(doubled, X * 2)
    assert counted.graphs == 1


def scaled(by: Any = 2) -> Callable[..., Any]:
    return lambda x, y: (torch.nn.functional.silu(x * by + torch.ones(8)), y.sum(0))


def aliased(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.mul_(2)
    return x + cache


CHANGES: dict[str, tuple[Any, ...]] = {
    "a number": (scaled(3), X, X),
    "a number of another type": (scaled(2.0), X, X),
    "sizes": (scaled(), X[:3], X[:3]),
    "strides": (scaled(), X, torch.randn(8, 4).T),
    "an offset": (scaled(), X, torch.randn(40)[8:].view(4, 8)),
    "a type": (scaled(), X, X.double()),
    "another input": (lambda x, y: (torch.nn.functional.silu(y * 2 + torch.ones(8)), x.sum(0)), X, X + 1),
    "one tensor": (scaled(), X, X),
}


@pytest.mark.parametrize("case", CHANGES)
def test_another_graph_or_input_is_compiled(case: str, counted: Counted) -> None:
    changed, *args = CHANGES[case]
    with torch.no_grad():
        first = scaled()
        torch.testing.assert_close(new_process(first)(X, X + 1), first(X, X + 1))
        torch.testing.assert_close(new_process(changed)(*args), changed(*args))
    assert counted.graphs == 2


def test_memory_in_common_is_another_case(counted: Counted) -> None:
    with torch.no_grad():
        cache, apart, shared = torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 8)
        torch.testing.assert_close(new_process(aliased)(cache, apart), torch.full((4, 8), 3.0))
        torch.testing.assert_close(new_process(aliased)(shared, shared[:]), torch.full((4, 8), 4.0))
    assert counted.graphs == 2


@pytest.mark.parametrize(
    "state",
    ["default dtype", "autocast", "attention", "deterministic", "torch", "sources", "option"],
)
def test_another_state_is_another_key(state: str, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T + torch.ones(4)

    options: dict[str, Any] = {}
    with torch.no_grad():
        torch.testing.assert_close(new_process(function)(X), function(X))
        match state:
            case "torch" | "sources":
                name = {"torch": "torch_facts", "sources": "sources"}[state]
                monkeypatch.setattr(kept, name, lambda: "another")
            case "option":
                options = {"experimental_config__remove_noop_ops": False}
        try:
            context: Any = torch.no_grad()
            match state:
                case "default dtype":
                    torch.set_default_dtype(torch.float64)
                case "autocast":
                    context = torch.autocast("cpu", torch.bfloat16)
                case "attention":
                    torch.backends.cuda.enable_flash_sdp(False)
                case "deterministic":
                    torch.use_deterministic_algorithms(True)
            with context:
                torch.testing.assert_close(new_process(function, **options)(X), function(X))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.backends.cuda.enable_flash_sdp(True)
            torch.use_deterministic_algorithms(False)
    assert counted.graphs == 2


@pytest.mark.filterwarnings("ignore:warmtest.twice:torchair.DegradedWarning")
@pytest.mark.parametrize(
    "why", ["gradients", "switched off", "the user's op", "a converter", "debugging", "gears"]
)
def test_what_is_not_kept(
    why: str, counted: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, options, x = net(), dict[str, Any](), X.clone()
    function: Any = model
    match why:
        case "switched off":
            options = {"engine_config__program_cache_mb": 0}
        case "the user's op":
            op = torch.library.custom_op(
                "warmtest::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
            )
            op.register_fake(torch.empty_like)
            function = lambda x: op(model(x))  # noqa: E731
        case "gears":
            torchair.inference.set_dim_gears(x, {0: [4, 8]})
            function = torch.sin
        case "a converter":
            warm.EXTENSIONS["a test's"] = 1
        case "debugging":
            monkeypatch.setattr(warm, "is_debugging", lambda: True)
    for _ in range(2):
        with torch.set_grad_enabled(why == "gradients"):
            run = new_process(function, "max-autotune", why == "gears", **options)
            torch.testing.assert_close(run(x), function(x))
    assert counted.graphs == 2
    assert not [path for path in (tmp_path / "programs").rglob("*") if path.is_file()]


def test_what_was_less_than_promised_is_compiled_and_told_again(counted: Counted) -> None:
    counted.after = lambda made: made.kept.runner.strategy.compiled.degradations.add("it could be better")
    for _ in range(2):
        with torch.no_grad(), pytest.warns(DegradedWarning, match="it could be better"):
            new_process(torch.sin)(X)
    assert counted.graphs == 2


def test_conditions_become_guards_again(counted: Counted) -> None:
    """What the compile took for granted: an even size."""
    counted.before = lambda inputs: [bool(n % 2 == 0) for n in symbols_of(inputs)] and None
    function = torch.sin
    with torch.no_grad():
        new_process(function, dynamic=True)(torch.ones(4, 3))
        assert counted.graphs == 1
        run = new_process(function, dynamic=True)
        torch.testing.assert_close(run(torch.ones(6, 3)), torch.ones(6, 3).sin())
        assert counted.graphs == 1
        torch.testing.assert_close(run(torch.ones(7, 3)), torch.ones(7, 3).sin())
        assert counted.graphs == 2, "an odd size is for another graph"


def test_the_better_program_is_what_is_kept(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builds = Quick()
    monkeypatch.setattr(background, "compile_elsewhere", builds)
    model = net()
    with torch.no_grad():
        run = new_process(model, engine_config__codegen="auto")
        for _ in range(2):
            run(X)
        assert torchair.wait_until_optimised(60)
        taken = new_process(model, engine_config__codegen="auto")
        torch.testing.assert_close(taken(X), model(X))
    assert counted.graphs == 1
    assert len(builds.made) == 1


def test_nothing_better_is_another_wish(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants no better program gets none of another process, and keeps none from those who do."""
    builds = Quick()
    monkeypatch.setattr(background, "compile_elsewhere", builds)
    with torch.no_grad():
        for budget in (0, None, 0):
            run = new_process(
                torch.sin, engine_config__codegen="auto", engine_config__compile_budget_s=budget
            )
            for _ in range(2):
                run(X)
            assert torchair.wait_until_optimised(60)
    assert counted.graphs == 2
    assert len(builds.made) == 1


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
def test_a_build_that_failed_is_tried_again(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "compile_elsewhere", lambda *args: (None, "there is no compiler"))
    with torch.no_grad():
        for _ in range(2):
            run = new_process(torch.sin, engine_config__codegen="auto")
            for _ in range(2):
                run(X)
            assert torchair.wait_until_optimised(60)
    assert counted.graphs == 2


def test_what_cannot_be_loaded_is_compiled(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    with torch.no_grad():
        new_process(model)(X)
        own = kept.Kept.get
        monkeypatch.setattr(kept.Kept, "get", lambda place: _of_another_torch(own(place)))
        with pytest.warns(DegradedWarning, match="compiled again"):
            torch.testing.assert_close(new_process(model)(X), model(X))
    assert counted.graphs == 2


def _of_another_torch(found: Any) -> Any:
    return (
        replace(found, artefact=replace(found.artefact, torch="2.99"))
        if isinstance(found, warm.Warm)
        else found
    )


SCRIPT = """
import torch, torchair
from torchair.backend import warm
config = torchair.CompilerConfig()
config.engine_config.codegen = "eager"
seen = []
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
compile = warm.compile_dynamo
warm.compile_dynamo = lambda *args: seen.append(1) or compile(*args)
run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
with torch.no_grad():
    torch.testing.assert_close(run(torch.ones(3, 8)), model(torch.ones(3, 8)))
print(len(seen))
"""


@pytest.mark.full
def test_two_real_processes() -> None:
    assert [python(["-c", SCRIPT]).stdout.strip() for _ in range(2)] == ["1", "0"]
