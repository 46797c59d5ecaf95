"""What an option does is seen, in each mode in which its row says that it acts. Engine-side ones have a file
of their own beside this one.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import torchair
from tests.debug.traces.test_device_graph import TracingDevice
from tests.support.compile import Seen, compile_fn, seen_with, watching
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.service.scheduler import SCHEDULER
from torchair.backend.settings.settings import PATIENCE
from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES
from torchair.core.log import capture_logger
from torchair.devices import installed

MODES = (GRAPH_MODES[0], CAPTURE_MODES[1])
EACH_MODE = pytest.mark.parametrize("mode", MODES)
CAPTURE = CAPTURE_MODES[1]
OFTEN = PATIENCE + 4
X = torch.randn(3, 4)


def recorded(fn: Any, calls: Any, options: dict[str, Any], mode: str = CAPTURE, **rest: Any) -> Seen:
    """What is made of a function that is called with each of these, on a device with graphs."""
    with watching() as seen, torch.no_grad():
        run = compile_fn(fn, options, mode, **rest)
        for args in calls:
            run(*args)
    return seen


@EACH_MODE
@pytest.mark.parametrize("which", ["pre", "post"])
def test_custom_pass_runs_before_or_after_builtin_passes(which: str, mode: str) -> None:
    """The one before ours sees `view`, the one behind them `reshape`; both may change the graph."""
    seen = []

    def look(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        seen.append("reshape" if "aten.reshape" in gm.code else "view")
        (sine,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
        sine.target = torch.ops.aten.cos.default

    got = compile_fn(lambda x: x.view(12).sin(), {f"post_grad_custom_{which}_pass": look}, mode)(X)
    torch.testing.assert_close(got, X.view(12).cos())
    assert seen == ["view" if which == "pre" else "reshape"]


@EACH_MODE
def test_nothing_is_compiled_or_recorded(mode: str, row: SimulatedDevice) -> None:
    calls = [(X,)] * OFTEN
    usual = recorded(torch.sin, calls, {"engine_config.codegen": "inductor"}, mode)
    assert (usual.runner.program.kind, row.captures) == ("inductor", 1)
    torch.compiler.reset()
    before = row.records
    eagerly = recorded(
        torch.sin, calls, {"engine_config.codegen": "inductor", "debug.run_eagerly": True}, mode
    )
    assert (eagerly.runner.program.kind, row.records) == ("eager", before)


@EACH_MODE
def test_deadlocks_are_searched(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with installed(TracingDevice()):
        recorded(torch.sin, [(X,)] * OFTEN, {"debug.deadlock_check": True}, mode, dynamic=False)
    assert any(path.name.endswith("_filtered_deadlock_check.json") for path in tmp_path.iterdir())
    assert "pairs of tasks that may starve each other: 1" in capsys.readouterr().out


# Passes


def turned(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.bmm(left.clone(), right).transpose(0, 1).relu()


@EACH_MODE
@pytest.mark.parametrize(
    ("path", "gone"),
    [
        ("experimental_config.remove_noop_ops", "aten.clone"),
        ("experimental_config.pattern_fusion_pass", "aten.bmm"),
    ],
)
def test_passes_of_both_modes(path: str, gone: str, mode: str) -> None:
    found = {}

    def look(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        found[value] = gone in gm.code

    left, right = torch.randn(3, 4, 128), torch.randn(3, 128, 256)
    for value in (True, False):
        seen_with({path: value, "post_grad_custom_post_pass": look}, turned, left, right, mode=mode)
    assert found == {True: False, False: True}


def test_views_are_folded() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.t().t().sin()

    path = "experimental_config.enable_view_optimize"
    transposes = [len(seen_with({path: value}, fn, X).ops("Transpose")) for value in (True, False)]
    assert transposes == [0, 2]


@EACH_MODE
@pytest.mark.parametrize("verify", [True, False])
def test_graphs_are_checked_between_passes(verify: bool, mode: str) -> None:
    """A pass of the user's leaves a node without its operand's place; ours behind it mend that by chance."""

    def misplace(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        sine, cosine = (
            gm.graph.find_nodes(op="call_function", target=op)[0]
            for op in (torch.ops.aten.sin.default, torch.ops.aten.cos.default)
        )
        sine.prepend(cosine)

    def mend(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        sine, cosine = (
            gm.graph.find_nodes(op="call_function", target=op)[0]
            for op in (torch.ops.aten.sin.default, torch.ops.aten.cos.default)
        )
        cosine.prepend(sine)

    options = {
        "engine_config.verify": verify,
        "experimental_config.remove_noop_ops": False,
        "experimental_config.pattern_fusion_pass": False,
        "post_grad_custom_pre_pass": misplace,
        "post_grad_custom_post_pass": mend,
    }
    run = compile_fn(lambda x: x.sin().cos(), options, mode)
    if not verify:
        torch.testing.assert_close(run(X), X.sin().cos())
        return
    with pytest.raises(Exception, match="post_grad_custom_pre_pass"):
        run(X)


# Programs


@pytest.mark.parametrize(
    ("codegen", "mode"),
    [(kind, mode) for kind in ("eager", "inductor") for mode in MODES] + [("reference", MODES[0])],
)
def test_codegen_option_selects_code_generator(codegen: str, mode: str) -> None:
    seen = seen_with({"engine_config.codegen": codegen}, lambda x: x.sin() + 1, X, mode=mode)
    assert seen.runner.program.kind == codegen


def test_capture_mode_has_no_ir_to_interpret() -> None:
    with pytest.warns(
        torchair.DegradedWarning, match="codegen='reference' has no effect.*mode='max-autotune'"
    ):
        seen = seen_with({"engine_config.codegen": "reference"}, lambda x: x.sin() + 1, X, mode=CAPTURE)
    assert seen.runner.program.kind == "eager"


def test_static_kernel_options_select_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sizes kernels are ordered for, and whether they are kept on disk."""
    head = "experimental_config.aclgraph._aclnn_static_shape_kernel"

    def ordered(**options: Any) -> list[bool]:
        torch.compiler.reset()
        given: list[Any] = []
        monkeypatch.setattr(SCHEDULER, "give", lambda job: given.append(job) or job)
        kernels = {head: True} | {
            f"{head}_{name}": value for name, value in options.items() if name != "uncached"
        }
        kernels |= {"capture.disable_static_kernel_compile_cache": options.get("uncached", False)}
        calls = [(torch.randn(rows, 4), torch.randn(4, columns)) for rows, columns in ((3, 5), (6, 7))]
        recorded(torch.mm, calls, kernels, dynamic=True)
        return [part.prepare().how.cached for job in given for part in job.task.parts]

    assert ordered() == [True, True]
    assert ordered(uncached=True) == [False, False]
    assert ordered(sym_value_range=[3]) == [True]
    assert ordered(sym_value_range=[99]) == []
    by_symbol = [ordered(sym_value_range=[5], sym_index=index) for index in range(3)]
    assert sorted(map(len, by_symbol)) == [0, 0, 1]


# Recordings


@EACH_MODE
def test_that_parameters_must_stay_is_a_warning(mode: str) -> None:
    """Whenever options are computed."""
    run = compile_fn(lambda x: x + 1, {"experimental_config.frozen_parameter": True}, mode, dynamic=False)
    for rows in (2, 3):
        with pytest.warns(UserWarning, match="frozen_parameter: .* Update parameters in place"):
            run(torch.randn(rows, 4))


@EACH_MODE
@pytest.mark.filterwarnings("ignore:frozen_parameter")
def test_parameters_are_not_compared(mode: str, row: SimulatedDevice) -> None:
    captures = []
    for frozen in (False, True):
        torch.compiler.reset()
        model, before = torch.nn.Linear(4, 4), row.records
        with torch.no_grad():
            run = compile_fn(model, {"experimental_config.frozen_parameter": frozen}, mode, dynamic=False)
            for _ in range(3):
                run(X)
            model.weight.data = model.weight.data + 1
            moved = run(X)
        assert torch.allclose(moved, model(X)) != frozen, "the recording still reads the old memory"
        captures.append(row.records - before)
    assert captures[0] == captures[1] + 1


@EACH_MODE
def test_memory_budget_evicts_recordings(mode: str, row: SimulatedDevice) -> None:
    calls = [(torch.randn(size, 4),) for size in (3, 5, 7) for _ in range(OFTEN)]
    path = "engine_config.memory_budget"
    plenty = recorded(torch.sin, calls, {}, mode, dynamic=True)
    torch.compiler.reset()
    tight = recorded(torch.sin, calls, {path: 100}, mode, dynamic=True)
    assert [seen.runner.report().dropped for seen in (plenty, tight)] == [0, 2]
    assert [len(seen.runner.report().recordings) for seen in (plenty, tight)] == [3, 1]


def test_pools_of_recordings(row: SimulatedDevice) -> None:
    pools = []
    for apart in (False, True):
        torch.compiler.reset()
        row.tokens.clear()
        calls = [(torch.randn(size, 4),) for size in (3, 5) for _ in range(2)]
        path = "debug.aclgraph.disable_mempool_reuse_in_same_fx"
        recorded(torch.sin, calls, {path: apart}, dynamic=True)
        pools.append(len(set(row.tokens[-2:])))
    assert pools == [1, 2]


@pytest.mark.parametrize("copies", [True, False])
def test_outputs_are_copied(copies: bool, row: SimulatedDevice) -> None:
    seen = recorded(torch.sin, [(X,)] * 4, {"debug.aclgraph.enable_output_clone": copies})
    assert (seen.runner.report().bytes_copied_out > 0) == copies


@pytest.mark.parametrize("copies", [True, False])
def test_inputs_are_copied(copies: bool, row: SimulatedDevice) -> None:
    """Otherwise the first call's tensor serves as the buffer."""
    seen = recorded(torch.sin, [(X,)] * 3, {"debug.aclgraph.clone_input": copies})
    (one,) = seen.runner.report().inputs
    assert one.why == ("copied into its static buffer" if copies else "copied if it has moved")
    assert bool(seen.runner.report().static_bytes) == copies


@pytest.mark.parametrize("error_mode", ["global", "thread_local", "relaxed"])
def test_capture_error_mode_reaches_the_device(
    error_mode: str, row: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    recorded(torch.sin, [(X,)] * 3, {"capture.capture_error_mode": error_mode})
    assert row.error_modes[-1] == error_mode


@pytest.mark.parametrize("skips", [True, False])
def test_nothing_is_compared(skips: bool, row: SimulatedDevice) -> None:
    caches = [torch.zeros(4)] * 3 + [torch.zeros(4)]
    path = "capture.unsafe_skip_npugraph_capture_validation"
    seen = recorded(lambda cache: cache.add_(1), [(cache,) for cache in caches], {path: skips})
    assert len(seen.runner.report().recaptures) == (not skips)
    assert [cache[0].item() for cache in caches[2:]] == ([4.0, 0.0] if skips else [3.0, 1.0])


@pytest.mark.parametrize("statistics", [True, False])
def test_statistics_in_the_log(statistics: bool, capsys: pytest.CaptureFixture[str]) -> None:
    capture_logger.setLevel(logging.DEBUG)
    x = torch.tensor([3.0, -4.0])
    recorded(torch.neg, [(x,)] * 2, {"capture.record_statistics_debug_info": statistics})
    capture_logger.setLevel(logging.ERROR)
    assert ("min -4, max 3, norm 5, mean -0.5" in capsys.readouterr().out) == statistics
