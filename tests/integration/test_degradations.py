"""Whatever is less than promised is told once, with its line and cure; in strict mode it is an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn
from tests.support.process import python
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.pipeline import compile as backend
from torchair.backend.settings.settings import Settings, resolve_settings
from torchair.capture import Policy
from torchair.configs.binding import paths_read
from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import flat_names, walk
from torchair.core.diagnostics import STRICT, Diagnostics
from torchair.core.errors import BadOption, Degraded, DegradedWarning
from torchair.debug.dumps.options import DebugOptions
from torchair.devices import get_device
from torchair.passes import CAPTURE_PASSES, DYNAMO_PASSES, FX_PASSES, GE_PASSES, LOWERED_PASSES


@torch.library.custom_op("airtest::loud", mutates_args=())
def loud_op(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@loud_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def compile_strictly(fn: Callable[..., Any], mode: str, strict: bool, **options: Any) -> Any:
    """Compile with `engine_config.strict`; other options are given as `group__name`."""
    paths = {name.replace("__", "."): value for name, value in options.items()}
    return compile_fn(fn, {"engine_config.strict": strict, **paths}, mode, dynamic=False)


def carries_an_op_through(strict: bool) -> None:
    compile_strictly(lambda x: loud_op(x) + 1, "max-autotune", strict)(torch.ones(3))


def splits(strict: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y[y > 0].sum() + y.cos().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        compile_strictly(fn, "npugraph_ex", strict)(torch.ones(3))


def looks_beside_its_input(strict: bool) -> None:
    with torch.no_grad():
        compile_strictly(lambda x: x.as_strided((2,), (1,), 1) + 1, "npugraph_ex", strict)(torch.ones(4)[:3])


def moves_on_every_call(strict: bool) -> None:
    run = compile_strictly(lambda x: x.add_(1), "npugraph_ex", strict)
    kept = [torch.zeros(3) for _ in range(9)]
    with torch.no_grad():
        for x in kept:
            run(x)


def breaks_a_recording(strict: bool) -> None:
    fails = get_device(torch.device("cpu"))
    assert isinstance(fails, SimulatedDevice)

    def fail() -> None:
        if fails.records:
            raise RuntimeError("no recording today")

    fails.on_record = fail
    with torch.no_grad():
        compile_strictly(lambda x: x + 1, "npugraph_ex", strict)(torch.ones(3))


def dumps_an_ir_that_is_not_run(strict: bool) -> None:
    options = {"dump_config__enable_dump": True, "debug__run_eagerly": True}
    compile_strictly(lambda x: x + 1, "max-autotune", strict, **options)(torch.ones(3))


def checks_for_deadlocks(strict: bool) -> None:
    compile_strictly(lambda x: x + 1, "npugraph_ex", strict, debug__deadlock_check=True)(torch.ones(3))


# What is told, and whether a line of this file belongs to it.
DEGRADED: dict[Callable[[bool], None], tuple[str, bool]] = {
    carries_an_op_through: (r"airtest.loud.default .*carried through.*register_fx_node_ge_converter", True),
    splits: (r"recorded in 3 pieces: aten.index.Tensor has a size that depends on data", True),
    looks_beside_its_input: (r"not recorded.*as_strided.* may read memory outside its input", False),
    moves_on_every_call: (r"mutated input x moved on every call.*keep the tensor and write into it", False),
    breaks_a_recording: (r"not recorded.*no recording today", False),
    dumps_an_ir_that_is_not_run: (r"dump_config dumps ops of the IR, and a graph runs without it", False),
    checks_for_deadlocks: (r"deadlock_check has nothing to analyse", False),
}


@pytest.fixture(autouse=True)
def _not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STRICT, raising=False)


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize("cause", DEGRADED, ids=lambda cause: cause.__name__)
def test_degradation_warns_once_with_location(cause: Callable[[bool], None]) -> None:
    text, has_line = DEGRADED[cause]
    with pytest.warns(DegradedWarning, match=text) as said:
        cause(False)
    assert len(said) == 1, [str(one.message) for one in said]
    assert not has_line or said[0].filename == __file__
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DegradedWarning)
        cause(False)  # the same cause again


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize("cause", DEGRADED, ids=lambda cause: cause.__name__)
def test_an_error_in_strict_mode(
    cause: Callable[[bool], None], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "environment":
        monkeypatch.setenv(STRICT, "1")
    with pytest.raises(Exception, match=DEGRADED[cause][0].partition(".*")[0]) as caught:
        cause(by == "option")
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, Degraded)


def test_report_lists_degradations(row: SimulatedDevice) -> None:
    gm = torch.fx.symbolic_trace(lambda x: [torch.ops.airtest.loud(x)])
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    with pytest.warns(DegradedWarning):
        runner = backend.compile_fx(gm, [torch.ones(2)], resolve_settings(config))
    (text,) = runner.report().degradations
    assert "loud has no converter" in text
    assert f"degraded: {text}" in str(runner.report())


def test_explain_counts_what_there_is_none_of(capsys: pytest.CaptureFixture[str]) -> None:
    found = torchair.explain(lambda x: x + 1, torch.ones(2))
    assert "0 fallbacks, 0 graph breaks" in str(found)
    assert "0 fallbacks, 0 graph breaks" in capsys.readouterr().out


def test_explain_lists_hints_without_warning() -> None:
    config = torchair.CompilerConfig()
    config.experimental_config.separate_atomic_clean = False
    found = torchair.explain(lambda x: x + 1, torch.ones(2), compiler_config=config)
    path = "experimental_config.separate_atomic_clean"
    assert found.idle_options == {path: "it applies only to Ascend hardware"}


def test_explain_names_the_users_arguments_and_host_ops() -> None:
    def fn(hidden: torch.Tensor) -> torch.Tensor:
        return hidden[hidden > 0].sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torchair.explain(fn, torch.ones(4))
    assert [copied.name for copied in found.copied_inputs] == ["hidden"]
    assert [(reason.op, "test_degradations.py" in reason.source) for reason in found.on_host] == [
        ("aten.index.Tensor", True)
    ]


def test_option_acts_or_is_hint_or_warns() -> None:
    flat = flat_names(OptionTree, ex=True)
    steps = (*DYNAMO_PASSES, *FX_PASSES, *LOWERED_PASSES, *CAPTURE_PASSES, *GE_PASSES)
    switches = {flat.get(step.on, step.on).removeprefix("!") for step in steps if step.on}
    acting = switches | paths_read(Settings) | paths_read(Policy) | paths_read(DebugOptions)
    for path, row in walk(OptionTree):
        assert row.acts == (row.hint or path in acting), path


def test_option_without_effect_warns_at_assignment() -> None:
    config = torchair.CompilerConfig()
    config.export.export_name = None  # the default
    with pytest.warns(DegradedWarning, match=r"export.inputs_name='x' has no effect") as said:
        config.export.inputs_name = "x"
    assert said[0].filename == __file__
    config.engine_config.strict = True
    with pytest.raises(Degraded, match=r"export\.inputs_name"):
        resolve_settings(config)


def test_a_text_has_its_line_and_its_cure() -> None:
    told = Diagnostics()
    with pytest.warns(DegradedWarning) as said:
        told.add("it is slow", at="/a/model.py:41   x[mask] += y", next="use where")
    assert [str(one.message) for one in said] == ["it is slow (model.py:41  x[mask] += y); use where"]
    assert (said[0].filename, said[0].lineno) == ("/a/model.py", 41)


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("on", True), ("0", False), ("", False)])
def test_strict_by_environment(value: str, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, value)
    assert Diagnostics().strict == strict


def test_a_typo_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "ture")
    with pytest.raises(BadOption, match="TORCHAIR_STRICT must be 0 or 1"):
        Diagnostics()


def test_graph_mode_names_the_users_arguments(row: SimulatedDevice) -> None:
    run = compile_strictly(lambda cache: cache.add_(1), "max-autotune", False)
    kept = [torch.zeros(3) for _ in range(9)]
    with torch.no_grad(), pytest.warns(DegradedWarning, match="mutated input cache moved on every call"):
        results = [run(cache) for cache in kept]
    assert [result.sum().item() for result in results] == [3.0] * 9


def test_two_graphs_with_one_trouble_are_two_causes(row: SimulatedDevice) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    def second(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always", DegradedWarning)
        for fn in (first, second):
            run, kept = compile_strictly(fn, "npugraph_ex", False), [torch.zeros(3) for _ in range(9)]
            for x in kept:
                run(x)
    assert ["x.add_(1)" in str(one.message) for one in said] == [True, False]


SCRIPT = """
import torch, torchair

@torch.library.custom_op("airtest::script", mutates_args=())
def script(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@script.register_fake
def _(x):
    return torch.empty_like(x)

config = torchair.CompilerConfig()
config.engine_config.codegen = "eager"
config.export.inputs_name = "x"
run = torch.compile(lambda x: script(x).sin(), backend=torchair.get_npu_backend(compiler_config=config))
for size in (2, 3, 4):
    run(torch.ones(size))
clean = torch.compile(lambda x: x.sin(), backend="npu", options={"codegen": "eager"})
clean(torch.ones(3))
"""


def test_a_script_with_default_logging_shows_each_once(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = python([str(path)])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "DegradedWarning" in line]
    assert len(lines) == 2, done.stderr
    assert "script.py:14: DegradedWarning: export.inputs_name='x'" in lines[0]
    assert "script.py:15: DegradedWarning: airtest.script.default has no converter" in lines[1]


def test_doubles_are_no_less_than_promised() -> None:
    """No IR op takes their products: torch's own does, and nothing is said; strict mode agrees."""
    config = torchair.CompilerConfig()
    config.engine_config.strict = True
    run = torch.compile(torch.mm, backend=torchair.get_npu_backend(compiler_config=config))
    a, b = torch.randn(2, 3).double(), torch.randn(3, 2).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(run(a, b), a @ b)
