"""A graph of Dynamo's is compiled once for all processes, and never taken for another."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.pipeline.test_tiered import Quick
from tests.support.process import python
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.dynamo import aot, graph_cache
from torchair.backend.service import program_cache, scheduler
from torchair.backend.service.request import symbols_of
from torchair.core.errors import DegradedWarning
from torchair.core.fingerprint import machine
from torchair.core.log import capture_logger
from torchair.core.torch_private.compilers.inductor import inductor_config
from torchair.core.torch_private.dynamo.config import functorch_config
from torchair.devices import installed
from torchair.passes.pass_manager import PassFailed, Step

pytestmark = pytest.mark.usefixtures("warm_starts")
MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])


class Counted:
    """Compiles, and counts."""

    def __init__(self) -> None:
        self.own = graph_cache.compile_dynamo
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
    monkeypatch.setattr(graph_cache, "compile_dynamo", made)
    monkeypatch.setattr(graph_cache, "EXTENSIONS", {})  # other tests have some
    return made


def new_process(
    function: Any, mode: str = "npugraph_ex", dynamic: bool | None = False, **options: Any
) -> Any:
    torch.compiler.reset()
    graph_cache.logger.forget()
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


def normed_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@MODES
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_next_process_compiles_nothing(mode: str, dynamic: bool, counted: Counted) -> None:
    with torch.no_grad():
        for model in (normed_layer(), normed_layer(), normed_layer()):
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


def test_what_is_detached_stays_so(counted: Counted) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            detached, view, _ = new_process(lambda x: (x.detach(), x.view(-1), x * 2))(x)
            assert not detached.requires_grad
            assert view.requires_grad
            assert detached.data_ptr() == view.data_ptr() == x.data_ptr()
    assert counted.graphs == 1


def test_views_of_other_kinds_have_the_version_of_the_input(counted: Counted, row: SimulatedDevice) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.view_as_real(x), x.conj(), x.real, x.imag, x + 1

    for _ in range(2):
        run = new_process(function)
        for _ in range(3):
            x = torch.view_as_complex(X[:, :2].contiguous())
            *views, _ = run(x)
            for got, expected in zip(views, function(x), strict=False):
                torch.testing.assert_close(got, expected)
                version = x._version
                got.zero_()
                assert x._version > version
    assert counted.graphs == 1


def test_a_float_that_was_taken_as_it_is(counted: Counted) -> None:
    """A float that changes is an input, and AOTAutograd fixes what is computed from it: no size need be a
    symbol for that.
    """

    def function(x: torch.Tensor, by: float) -> tuple[torch.Tensor, float]:
        return x * by, by * 2

    with torch.no_grad():
        for values in ((3.5, 4.5, 5.5), (3.5, 5.5, 6.5)):
            run = new_process(function, dynamic=None)
            for value in values:
                got, doubled = run(X, value)
                torch.testing.assert_close(got, X * value)
                assert doubled == value * 2
    assert counted.graphs == 4, "one process had 3.5, and 5.5 last"


@pytest.mark.parametrize("times", [1, 2])
def test_memory_that_overlaps_elsewhere(times: int, counted: Counted) -> None:
    """Where offsets are symbols, a guard says how inputs overlap."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2 + x

    for _ in range(times):
        run = new_process(function, dynamic=True)
        for first in (5, 2):
            memory, same = torch.zeros(16), torch.zeros(16)
            got = run(memory[:4], memory[first : first + 4])
            torch.testing.assert_close(got, function(same[:4], same[first : first + 4]))
    assert counted.graphs == 2 * times


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
    "a view that is negated": (scaled(), X, torch._neg_view(X + 1)),
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
    [
        "default dtype",
        "autocast",
        "attention",
        "attention in halves",
        "deterministic",
        "torch",
        "sources",
        "option",
        "strict",
        "strict environment",
        "functorch",
        "device",
    ],
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
                monkeypatch.setattr(program_cache, name, lambda: "another")
            case "option":
                options = {"experimental_config__remove_noop_ops": False}
            case "strict":
                options = {"engine_config__strict": True}
            case "strict environment":
                monkeypatch.setenv("TORCHAIR_STRICT", "1")
        try:
            context: Any = torch.no_grad()
            match state:
                case "functorch":
                    context = functorch_config.patch(view_replay_for_aliased_outputs=None)
                case "default dtype":
                    torch.set_default_dtype(torch.float64)
                case "autocast":
                    context = torch.autocast("cpu", torch.bfloat16)
                case "attention":
                    torch.backends.cuda.enable_flash_sdp(False)
                case "deterministic":
                    torch.use_deterministic_algorithms(True)
                case "attention in halves":
                    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
                case "device":
                    context = installed(SimulatedDevice())
            with context:
                torch.testing.assert_close(new_process(function, **options)(X), function(X))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.backends.cuda.enable_flash_sdp(True)
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
            torch.use_deterministic_algorithms(False)
    assert counted.graphs == 2


def as_silu(by: int) -> Callable[..., Any]:
    """A function of the user's that says it is torch's."""

    @functools.wraps(torch.nn.functional.silu)
    def silu(x: torch.Tensor) -> torch.Tensor:
        return x * by

    return torch.compiler.allow_in_graph(silu)


def test_object_that_claims_torch_module_is_not_trusted(counted: Counted) -> None:
    for by in (2, 3):
        called = as_silu(by)
        torch.testing.assert_close(new_process(lambda x, called=called: called(x))(X), X * by)
    assert counted.graphs == 2


def test_a_method_that_somebody_puts_into_tensors(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo looks into those of inputs; of other tensors its graph has the name."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg().abs() + 1

    with torch.no_grad():
        torch.testing.assert_close(new_process(function)(X), function(X))
        monkeypatch.setattr(torch.Tensor, "abs", lambda self: self * 3)
        torch.testing.assert_close(new_process(function)(X), 1 - X * 3)
    assert counted.graphs == 2


def test_an_op_that_somebody_takes_apart(counted: Counted) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, x)

    with torch.no_grad():
        torch.testing.assert_close(new_process(function)(X), function(X))
        library = torch.library.Library("aten", "IMPL")
        try:
            library.impl("linear", lambda x, w, b=None: x.new_ones(4, 4), "CompositeImplicitAutograd")
            torch.testing.assert_close(new_process(function)(X), torch.ones(4, 4))
        finally:
            library._destroy()
        torch.testing.assert_close(new_process(function)(X), function(X))
    assert counted.graphs == 2


@pytest.mark.filterwarnings("ignore:warmtest.twice:torchair.DegradedWarning")
@pytest.mark.filterwarnings("ignore:use_graph_pool disables:UserWarning")
@pytest.mark.parametrize(
    "why",
    [
        "gradients",
        "switched off",
        "the user's op",
        "a converter",
        "debugging",
        "gears",
        "a pool of the user's",
        "statistics",
        "verification",
        "a pass in Inductor",
    ],
)
def test_what_is_not_kept(
    why: str,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    model, mode, options, x = normed_layer(), "max-autotune", dict[str, Any](), X.clone()
    function: Any = model
    changed: Any = contextlib.nullcontext()
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
            graph_cache.EXTENSIONS["a test's"] = 1
        case "debugging":
            monkeypatch.setattr(graph_cache, "is_debugging", lambda: True)
        case "a pool of the user's":
            mode, options = "npugraph_ex", {"aclgraph_config__use_custom_pool": (1, 0)}
        case "statistics":
            mode, options = "npugraph_ex", {"capture__record_statistics_debug_info": True}
            caplog.set_level(logging.DEBUG, capture_logger.name)
        case "verification":
            options = {"engine_config__verify": True}
        case "a pass in Inductor":
            changed = inductor_config.patch(post_grad_custom_post_pass=lambda graph: None)
    for _ in range(2):
        with torch.set_grad_enabled(why == "gradients"), changed:
            run = new_process(function, mode, why == "gears", **options)
            torch.testing.assert_close(run(x), function(x))
    assert counted.graphs == 2
    assert not [path for path in (tmp_path / "programs").rglob("*") if path.is_file()]


def test_degraded_graph_is_recompiled_and_warns_again(counted: Counted) -> None:
    counted.after = lambda made: made.kept.runner.strategy.compiled.degradations.add("it could be better")
    for _ in range(2):
        with torch.no_grad(), pytest.warns(DegradedWarning, match="it could be better"):
            new_process(torch.sin)(X)
    assert counted.graphs == 2


def test_passes_that_are_switched_in_a_file(counted: Counted, tmp_path: Path) -> None:
    """The name of the file says nothing."""
    file = tmp_path / "switches.json"
    with torch.no_grad():
        for switch in ("on", "off", "on"):
            file.write_text(json.dumps({"Switch": {"GraphFusion": {"fuse_before_autograd": switch}}}))
            new_process(torch.sin, "max-autotune", fusion_config__fusion_switch_file=str(file))(X)
    assert counted.graphs == 2


def test_failed_pre_grad_pass_warns_again(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise PassFailed(Step(lambda *_: 0, name="a_pass"), ValueError("it fails"))

    monkeypatch.setattr(aot, "run", fails)
    for _ in range(2):
        with torch.no_grad(), pytest.warns(DegradedWarning, match="compiled without the passes"):
            new_process(torch.sin, "max-autotune", experimental_config__npu_fx_pass=True)(X)
    assert counted.graphs == 2


def test_warnings_name_the_line_of_this_process(counted: Counted) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def second(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    found = list[Any]()
    with torch.no_grad():
        new_process(first)(X)
        own = graph_cache.CachedGraph.call
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graph_cache.CachedGraph, "call", lambda *args: found.append(own(*args)) or found[0])
            new_process(second)(X)
    assert counted.graphs == 1
    line = second.__code__.co_firstlineno + 1
    with pytest.warns(DegradedWarning, match=rf"test_graph_cache.py:{line}"):
        found[0].kept.runner.strategy.compiled.degradations.add("it is slow", here=True)


def test_files_that_change_meanwhile(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs is not what the files say: nobody else takes it."""
    with torch.no_grad():
        monkeypatch.setattr(machine, "_LOADED", 0.0)
        for _ in range(2):
            monkeypatch.setattr(program_cache, "sources", machine.sources.__wrapped__)
            new_process(torch.sin)(X)
    assert counted.graphs == 2


def test_conditions_of_what_cannot_be_loaded(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken for granted when it is compiled again, and are conditions of that, too."""
    counted.before = lambda inputs: [bool(n % 2 == 0) for n in symbols_of(inputs)] and None
    with torch.no_grad():
        new_process(torch.sin, dynamic=True)(torch.ones(4, 3))
        with monkeypatch.context() as patch:
            patch.setattr(
                program_cache.ProgramCacheEntry,
                "get",
                lambda place, own=program_cache.ProgramCacheEntry.get: _of_another_torch(own(place)),
            )
            with pytest.warns(DegradedWarning, match="compiled again"):
                new_process(torch.sin, dynamic=True)(torch.ones(4, 3))
        assert counted.graphs == 2
        new_process(torch.sin, dynamic=True)(torch.ones(7, 3))
    assert counted.graphs == 3, "an odd size is for another graph"


def test_what_was_damaged_is_kept_anew(counted: Counted, tmp_path: Path) -> None:
    with torch.no_grad():
        new_process(torch.sin)(X)
        (file,) = [path for path in (tmp_path / "programs").rglob("*") if path.is_file()]
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.warns(DegradedWarning, match="is damaged"):
            new_process(torch.sin)(X)
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
    monkeypatch.setattr(scheduler, "compile_in_worker", builds)
    model = normed_layer()
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
    monkeypatch.setattr(scheduler, "compile_in_worker", builds)
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
    monkeypatch.setattr(scheduler, "compile_in_worker", lambda *args: (None, "there is no compiler"))
    with torch.no_grad():
        for _ in range(2):
            run = new_process(torch.sin, engine_config__codegen="auto")
            for _ in range(2):
                run(X)
            assert torchair.wait_until_optimised(60)
    assert counted.graphs == 2


def test_what_cannot_be_loaded_is_compiled(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    model = normed_layer()
    with torch.no_grad():
        new_process(model)(X)
        own = program_cache.ProgramCacheEntry.get
        monkeypatch.setattr(
            program_cache.ProgramCacheEntry, "get", lambda place: _of_another_torch(own(place))
        )
        with pytest.warns(DegradedWarning, match="compiled again"):
            torch.testing.assert_close(new_process(model)(X), model(X))
    assert counted.graphs == 2


def _of_another_torch(found: Any) -> Any:
    return (
        replace(found, artefact=replace(found.artefact, torch="2.99"))
        if isinstance(found, graph_cache.CachedGraph)
        else found
    )


SCRIPT = """
import torch, torchair
from torchair.backend.dynamo import graph_cache
config = torchair.CompilerConfig()
config.engine_config.codegen = "eager"
seen = []
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
compile = graph_cache.compile_dynamo
graph_cache.compile_dynamo = lambda *args: seen.append(1) or compile(*args)
run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
with torch.no_grad():
    torch.testing.assert_close(run(torch.ones(3, 8)), model(torch.ones(3, 8)))
print(len(seen))
"""


@pytest.mark.full
def test_two_real_processes() -> None:
    assert [python(["-c", SCRIPT]).stdout.strip() for _ in range(2)] == ["1", "0"]
