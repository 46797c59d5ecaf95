"""`compare` on models that are right, what it leaves untouched, and faults of other kinds than one op."""

from __future__ import annotations

import copy
import math
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import torchair
from tests.compare import faults
from tests.compare.faults import cnn, converter, llama, more_op
from tests.compare.test_faults import loaded
from tests.support.compile import make_config
from tests.support.simulated_device import SimulatedDevice, SimulatedGraph
from tests.support.slow import slow
from torchair import ge
from torchair.capture.recording.outputs import Outputs
from torchair.compare.base.tolerances import DEFAULTS, measure, tolerances_of
from torchair.compare.compare import compare
from torchair.compare.report import Comparison
from torchair.convert.base import registry
from torchair.core.errors import BadOption, BadOptionType, NotPossible

aten = torch.ops.aten
CARRIED = pytest.mark.filterwarnings("ignore:.*carried through as it is:torchair.DegradedWarning")


def kinds(found: Comparison) -> list[str]:
    return list(dict.fromkeys(row.kind for row in found.stages))


@pytest.mark.parametrize("make", [cnn, slow(llama)])
@pytest.mark.parametrize("mode", [slow("max-autotune"), "npugraph_ex"])
def test_a_model_that_is_right(make: Callable[[], Any], mode: str) -> None:
    model, inputs = make()
    found = compare(model, config=make_config(mode=mode, codegen="auto"), **inputs)
    assert found.ok, str(found)
    assert found.first is None
    assert found.script == ""
    assert "equal" in str(found)
    graph_mode = ["trace", "FX pass", "conversion", "GE pass", "lowering", "compiled", "replayed"]
    assert kinds(found) == (
        graph_mode if mode == "max-autotune" else ["trace", "FX pass", "compiled", "replayed"]
    )
    assert found.stages[0].stage == "traced by Dynamo"
    assert found.stages[-1].stage == "compiled, as a whole"


@pytest.mark.parametrize("codegen", ["eager", "reference"])
def test_other_code_generators(codegen: str) -> None:
    found = compare(lambda x: (x @ x.t()).softmax(-1), torch.randn(4, 4), config=make_config(codegen=codegen))
    assert found.ok, str(found)
    assert f"compiled by {codegen}" in [row.stage for row in found.stages]


class Counting(nn.Module):
    """Writes a buffer and an argument, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        cache[1:].mul_(2)
        return nn.functional.dropout(self.linear(x), 0.5) + cache.sum()


def test_nothing_of_the_users_changes() -> None:
    model, x, cache = Counting(), torch.randn(3, 4), torch.arange(8.0).reshape(4, 2)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    with torch.no_grad():
        compiled(x.clone(), cache.clone())
    before = copy.deepcopy((model.state_dict(), x, cache))
    versions = [tensor._version for tensor in (x, cache, *model.state_dict().values())]
    state, frames, counters = (
        torch.get_rng_state(),
        counter.frame_count,
        copy.deepcopy(torch._dynamo.utils.counters),
    )
    found = compare(model, x, cache, config=make_config())
    assert found.ok, str(found)
    torch.testing.assert_close((model.state_dict(), x, cache), before, rtol=0, atol=0)
    assert [tensor._version for tensor in (x, cache, *model.state_dict().values())] == versions
    assert torch.equal(torch.get_rng_state(), state)
    assert torch._dynamo.utils.counters == counters
    with torch.no_grad():
        compiled(x.clone(), cache.clone())
    assert counter.frame_count == frames, "what the user had compiled is still there"


@pytest.mark.full
def test_nothing_is_left_in_dynamos_caches() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    for size in range(2, 14):  # more often than Dynamo compiles one function
        found = compare(broken, torch.randn(size), config=make_config())
        assert found.ok
        assert len({row.graph for row in found.stages}) == 3, "the model and two graphs, of one size each"
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(broken.__code__)
    assert not entries


def test_what_a_function_reaches_is_put_back() -> None:
    state = torch.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state * 2

    assert compare(step, torch.ones(3), config=make_config()).ok
    assert torch.equal(state, torch.zeros(3))


def test_the_second_of_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.exp().cos()

    converter(aten.exp.default, lambda right, x: more_op(right(x)))(monkeypatch)
    found = compare(model, torch.randn(5), config=make_config())
    assert found.first is not None
    assert (found.first.node, found.first.culprit.name) == ("exp", "aten.exp.default")
    assert found.first.graph != found.stages[1].graph
    assert "y.exp().cos()" in found.first.source


@pytest.mark.full
def test_compare_backward_names_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = cnn()
    found = compare(model, config=make_config(), backward=True, **inputs)
    assert found.ok, str(found)
    assert len({row.graph for row in found.stages}) == 3, "the model, forward and backward"
    # Wrong in backward alone.
    converter(aten.threshold_backward.default, lambda right, *args: more_op(right(*args)))(monkeypatch)
    assert compare(model, config=make_config(), **inputs).ok
    wrong = compare(model, config=make_config(), backward=True, **inputs).first
    assert wrong is not None
    assert (wrong.node, wrong.culprit.name) == ("threshold_backward", "aten.threshold_backward.default")


def test_nothing_to_differentiate() -> None:
    with pytest.raises(NotPossible, match="nothing to differentiate"):
        compare(torch.sin, torch.randn(3), backward=True, config=make_config())


@pytest.mark.full
def test_training_with_dropout_and_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU()).train()
    found = compare(model, torch.randn(8, 6), backward=True)
    assert found.ok, str(found)


def test_parameters_that_are_saved_and_views_of_one_another() -> None:
    """Backward graphs get parameters, and tensors that share memory with each other."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x @ self.weight).tanh()
            return (y * y.t().reshape(4, 4) * self.weight).exp()

    found = compare(Model(), torch.randn(4, 4), backward=True, config=make_config())
    assert found.ok, str(found)


def test_compare_dynamic_names_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x.reshape(x.shape[1], -1).softmax(-1) * x.shape[0]).flatten()[: x.shape[0]]

    found = compare(model, torch.randn(3, 5), dynamic=True, config=make_config())
    assert found.ok, str(found)
    faults.kernel("SoftmaxV2", faults.more)(monkeypatch)
    wrong = compare(model, torch.randn(3, 5), dynamic=True, config=make_config()).first
    assert wrong is not None
    assert (wrong.culprit.kind, wrong.culprit.name, wrong.node) == ("kernel", "SoftmaxV2", "_softmax")


def test_an_error_that_later_ops_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 1e-9 + x).relu()

    converter(aten.exp.default, lambda right, x: more_op(right(x)))(monkeypatch)
    x = torch.rand(6)
    assert compare(model, x, config=make_config()).ok
    found = compare(model, x, config=make_config(), every_node=True)
    assert found.first is not None
    assert found.first.node == "exp"


def test_a_write_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.mul_(2)
        return x + 1

    def lose_writes(gm: Any, ctx: Any) -> int:
        found = gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
        for node in found:
            node.replace_all_uses_with(node.args[1])
            gm.graph.erase_node(node)
        return len(found)

    faults.added_pass("FX_PASSES", lose_writes)(monkeypatch)
    found = compare(model, torch.ones(2), torch.ones(2), config=make_config(mode="npugraph_ex")).first
    assert found is not None
    assert (found.culprit.name, found.op) == ("lose_writes", "aten.copy_.default")


def test_a_part_of_what_was_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """`special_entr` has no converter; `log`, one of its parts, has."""
    model = torch.special.entr
    converter(aten.log.default, lambda right, x: more_op(right(x)))(monkeypatch)
    found = compare(model, torch.rand(5) + 0.5, config=make_config()).first
    assert found is not None
    assert (found.node, found.culprit.kind, found.culprit.name) == (
        "special_entr",
        "converter",
        "aten.log.default",
    )
    assert "is decomposed" in found.culprit.why


def test_a_converter_that_looks_at_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself the call is right: only behind `exp` its converter does something else."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return (x.neg().neg().exp() * 2).sigmoid()

    def look(right: Callable[..., Any], x: Any, *rest: Any) -> Any:
        return more_op(right(x, *rest)) if x.op.type == "Exp" else right(x, *rest)

    converter(aten.mul.Tensor, look)(monkeypatch)
    found = compare(model, torch.randn(5), config=make_config())
    assert found.first is not None
    assert (found.first.node, found.first.culprit.kind, found.first.culprit.name) == (
        "mul",
        "converter",
        "aten.mul.Tensor",
    )
    assert "after exp" in found.first.culprit.why
    assert found.first.nodes == ("exp", "mul")
    assert "sigmoid" not in found.script


def spoil(gm: Any, example_inputs: Any, config: Any) -> None:
    """A user's pass with a mistake in it."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.cos.default):
        node.target = aten.sin.default


def test_a_pass_of_the_users(tmp_path: Path) -> None:
    config = torchair.npugraph_ex.CompilerConfig()
    config.post_grad_custom_post_pass = spoil
    found = compare(lambda x: (x + 1).cos(), torch.randn(2, 1).expand(2, 20), config=config)
    assert found.first is not None
    assert (found.first.culprit.name, found.first.node) == ("post_grad_custom_post_pass", "cos")
    script = loaded(found.save(tmp_path / "of_the_users.py"))
    assert isinstance(script.CONFIG, torchair.npugraph_ex.CompilerConfig)
    assert list(script.FUNCTIONS) == [f"{spoil.__module__}.spoil"]
    with pytest.raises(SystemExit, match="add the functions"):
        runpy.run_path(script.__file__, run_name="__main__")
    script.CONFIG.post_grad_custom_post_pass = spoil
    assert not compare(script.graph, *script.INPUTS, config=script.CONFIG).ok


class TestDouble:
    """Who is wrong, eager or the compiled model?"""

    @pytest.mark.full
    def test_compare_with_float64_accepts_fused_half_precision(self) -> None:
        """In half precision eager rounds after every op, the compiled code does not."""

        def model(x: torch.Tensor) -> torch.Tensor:
            return ((x * x + 1000.0) - 1000.0) * 3

        x = torch.linspace(0.1, 1, 64).half()
        found = compare(model, x, against="float64")
        assert found.ok, str(found)
        assert any("eager itself exceeds the tolerance at sub" in note for note in found.notes)
        compiled = next(row for row in found.stages if row.kind == "compiled")
        assert compiled.eager is not None
        assert compiled.errors.max_absolute < compiled.eager.max_absolute / 10
        assert not compare(model, x).ok, "against eager the right one is blamed"

    def test_compare_reports_eager_errors_next_to_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        converter(aten.exp.default, lambda right, x: more_op(right(x)))(monkeypatch)
        found = compare(lambda x: x.exp().sum(-1), torch.rand(3, 4), against="float64")
        assert found.first is not None
        assert found.first.node == "exp"
        assert found.first.eager is not None
        assert found.first.eager.ok
        assert not found.notes
        assert "eager's" in str(found)

    def test_compare_accepts_convolution_model(self) -> None:
        model, inputs = cnn()
        assert compare(model, against="float64", config=make_config(), **inputs).ok


class TestRecordings:
    """On a device with graphs: what a recording keeps from an earlier call."""

    def model(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu() * scale

    def inputs(self) -> list[torch.Tensor]:
        return [torch.randn(8), torch.rand(8)]

    def test_compare_accepts_recorded_calls(self, row: SimulatedDevice) -> None:
        found = compare(self.model, *self.inputs(), config=make_config(mode="npugraph_ex"))
        assert found.ok, str(found)
        assert row.replays > row.records

    def test_a_stale_input(self, row: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        replay = SimulatedGraph.replay

        def lazy(graph: SimulatedGraph) -> None:
            """The first copy at the head of a graph is made once."""
            if getattr(graph, "done", False):
                graph.copies[0][2] = 0
            graph.done = True
            replay(graph)

        monkeypatch.setattr(SimulatedGraph, "replay", lazy)
        found = compare(self.model, *self.inputs(), config=make_config(mode="npugraph_ex"))
        assert found.first is not None, str(found)
        assert (found.first.kind, found.first.culprit.kind) == ("replayed", "recording")
        assert found.first.culprit.name == "input x"
        assert "used the value of this input from call" in found.first.culprit.why

    def test_an_output_that_is_overwritten(
        self, row: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody looks whether the caller still holds the outputs."""
        monkeypatch.setattr(Outputs, "held", lambda self: False)
        found = compare(self.model, *self.inputs(), config=make_config(mode="npugraph_ex"))
        assert found.first is not None, str(found)
        assert found.first.culprit.kind == "recording"
        assert found.first.culprit.name == "output 0"
        assert "still holds it" in found.first.culprit.why


class TestNumbers:
    def test_measure_counts_ulp(self) -> None:
        one = torch.tensor([1.0, 1.0])
        next_one = torch.nextafter(one, torch.tensor(2.0))
        errors = measure(next_one, one, DEFAULTS)
        assert errors.ulp == 1
        assert errors.max_absolute == torch.finfo(torch.float32).eps
        assert errors.ok

    def test_the_worst_element(self) -> None:
        want = torch.ones(2, 3)
        got = want.clone()
        got[1, 2] = 2
        errors = measure(got, want, DEFAULTS)
        assert (errors.at, errors.differing, errors.elements) == ((1, 2), 1, 6)
        assert not errors.ok
        assert errors.max_relative == 1

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_what_is_no_number(self, value: float) -> None:
        one, other = torch.tensor([1.0, value]), torch.tensor([1.0, 2.0])
        assert measure(one, one.clone(), DEFAULTS).ok
        assert not measure(other, one, DEFAULTS).ok
        assert not measure(one, other, DEFAULTS).ok

    def test_integers_are_exact(self) -> None:
        assert not measure(torch.tensor([10**9 + 1]), torch.tensor([10**9]), DEFAULTS).ok

    def test_other_shapes_and_dtypes(self) -> None:
        assert "float32[2], should be float32[3]" in measure(torch.ones(2), torch.ones(3), DEFAULTS).text
        assert "float64[2]" in measure(torch.ones(2).double(), torch.ones(2), DEFAULTS).text

    def test_large_integers_are_exact(self) -> None:
        errors = measure(torch.tensor([2**60]), torch.tensor([2**60 + 1]), DEFAULTS)
        assert not errors.ok
        assert errors.differing == 1

    def test_numbers_of_python_are_elements_of_tensors(self) -> None:
        assert measure(1.0, 1.0 + 2e-7, DEFAULTS).ok
        assert not measure(1.0, 1.01, DEFAULTS).ok

    @pytest.mark.parametrize("huge", [torch.finfo(torch.float32).min, -1e9])
    def test_a_mask_hides_nothing(self, huge: float) -> None:
        want = torch.tensor([0.5, 0.7, huge, huge])
        assert not measure(torch.tensor([0.5, 0.71, huge, huge]), want, DEFAULTS).ok
        assert measure(torch.tensor([0.5, 0.70000005, huge, huge]), want, DEFAULTS).ok

    def test_squares_may_be_too_large(self) -> None:
        want = torch.tensor([1e200, 0.3], dtype=torch.float64)
        assert not measure(want + torch.tensor([0, 0.1]), want, DEFAULTS).ok

    def test_cancellation_is_allowed(self) -> None:
        want = torch.tensor([1000.0, 1e-6])
        assert measure(torch.tensor([1000.0, 2e-6 + 1e-5]), want, DEFAULTS).ok

    def test_tolerances_by_dtype_are_checked(self) -> None:
        model, x = torch.sin, torch.randn(4)
        assert tolerances_of((1e-2, 1e-3))[torch.float16] == (1e-2, 1e-3)
        assert tolerances_of({torch.float32: (1e-2, 1e-3)})[torch.float16] == DEFAULTS[torch.float16]
        for wrong in ((1e-2,), (-1, 0), "ab", {torch.float32: 1}):
            with pytest.raises(BadOption, match="must be a pair"):
                compare(model, x, tolerances=wrong)  # type: ignore[arg-type]
        with pytest.raises(BadOptionType, match="dtypes as keys"):
            compare(model, x, tolerances={"float32": (1, 1)})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.dropout(x.t(), 0.5),
        lambda x: torch.randn_like(x.t()),
        lambda x: nn.functional.dropout(
            x.view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last), 0.5
        ),
    ],
    ids=["dropout", "like", "channels last"],
)
def test_different_random_numbers_are_not_a_mismatch(function: Callable[..., Any]) -> None:
    found = compare(function, torch.randn(4, 6), config=make_config(codegen="auto"))
    assert found.ok, str(found)
    assert "random numbers differ from those of eager" in found.notes[0]


@pytest.mark.full
def test_attention_with_dropout_in_training() -> None:
    """Inductor lays the probabilities out otherwise than eager, and draws in that order."""

    def attend(q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    found = compare(attend, torch.randn(2, 4, 9, 8, requires_grad=True), backward=True)
    assert found.ok, str(found)


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
def test_all_generators_begin_anew(draw: Callable[[], float]) -> None:
    assert compare(lambda x: x * float(draw()), torch.randn(4), config=make_config()).ok


@CARRIED
def test_what_is_never_the_same_is_refused() -> None:
    count = [0]

    def counts(x: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return x * count[0]

    with pytest.raises(NotPossible, match="other numbers in eager when it is called again"):
        compare(counts, torch.ones(3), config=make_config())
    with torch.library._scoped_library("airtest", "FRAGMENT") as library:
        library.define("counted(Tensor x) -> Tensor")
        library.impl("counted", counts, "CPU")
        library.impl("counted", torch.empty_like, "Meta")
        with pytest.raises(NotPossible, match=r"airtest\.counted\.default .* returns other numbers"):
            compare(lambda x: torch.ops.airtest.counted(x) + 1, torch.ones(3), config=make_config())


@CARRIED
def test_a_fake_kernel_that_lies() -> None:
    with torch.library._scoped_library("airtest", "FRAGMENT") as library:
        library.define("widened(Tensor x) -> Tensor")
        library.impl("widened", lambda x: x.double(), "CPU")
        library.impl("widened", torch.empty_like, "Meta")
        found = compare(lambda x: torch.ops.airtest.widened(x) + 1, torch.ones(3))
    assert found.first is not None
    assert str(found.first.culprit) == "fake kernel airtest.widened.default"
    assert found.first.node == "widened"
    assert found.first.culprit.why == "float64[3], but its fake kernel returns float32[3]"


def test_a_converter_of_the_users_in_a_model_of_torchs_layers() -> None:
    """No line of the user's is there, and none of ours is shown; the script says what to import."""
    hardswish = torch.ops.aten.hardswish.default
    torchair.register_fx_node_ge_converter(hardswish)(lambda self: ge.Identity(self))
    try:
        found = compare(
            nn.Sequential(nn.Linear(4, 4), nn.Hardswish()),
            torch.randn(2, 4),
            config=make_config(),
        )
    finally:
        registry._user.pop(hardswish)
    assert found.first is not None
    assert str(found.first.culprit) == "converter aten.hardswish.default (the user's)"
    assert "compare.py" not in found.first.source
    assert "# Import the module that registers the converter of aten.hardswish.default" in found.script


def test_compare_refuses_wrong_arguments() -> None:
    with pytest.raises(BadOption, match="compare does not accept against='numpy'"):
        compare(torch.sin, torch.randn(3), against="numpy")
    with pytest.raises(NotPossible, match="found no ops to compile"):
        compare(torch.compiler.disable(torch.sin), torch.randn(3))


def test_the_public_name() -> None:
    assert torchair.debug.compare is compare


def test_generated_code_that_reads_what_it_has_overwritten() -> None:
    """Inductor shifts a cache in place and reads elements that it has written already. Nothing is put in."""

    def model(cache: torch.Tensor) -> torch.Tensor:
        cache[1:].copy_(cache[:-1].clone())
        return cache.sum()

    cache = torch.arange(8.0).reshape(4, 2)
    compiled = torch.compile(model, backend="inductor")
    ours, theirs = cache.clone(), cache.clone()
    model(ours)
    compiled(theirs)
    found = compare(model, cache, config=make_config(codegen="inductor"))
    if found.ok:
        assert torch.equal(ours, theirs), "Inductor does so here, and it was not found"
        return
    assert found.first is not None
    assert found.first.culprit.kind == "generated code"
    assert "slice_scatter" in found.first.culprit.why
    assert "copy_" in found.first.nodes
