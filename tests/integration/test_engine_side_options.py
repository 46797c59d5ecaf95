"""Options that address the engine act on our own: on what its passes do, on the order of ops, on streams."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import torchair
from tests.support.compile import Seen, compile_fn, make_config, seen_with, watching
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.backend.settings.settings import PATIENCE, resolve_settings
from torchair.core.errors import BadOption, Degraded, DegradedWarning
from torchair.core.log import logger
from torchair.engine.interpret import interpret
from torchair.passes import names as pass_names

LEFT, RIGHT = torch.randn(3, 4, 128), torch.randn(3, 128, 256)
X = torch.randn(3, 4)
LEVEL, SWITCH = "ge_config.oo_level", "ge_config.optimization_switch"
FILE = "fusion_config.fusion_switch_file"
SORTING = "experimental_config.topology_sorting_strategy"


def turned(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A chain for the rule `bmm_transpose`, and a transpose that a product takes over."""
    made = torch.bmm(left, right).transpose(0, 1).relu()
    return made[0].t() @ made[0]


def fused(seen: Seen) -> tuple[bool, bool]:
    """Did the rule fire, and the pass over the IR?"""
    (product,) = seen.ops("MatMul")
    return "TransposeBatchMatMul" in seen.types, product.attributes()["transpose_x1"]


def test_level_o1_leaves_fusions_out() -> None:
    assert fused(seen_with({}, turned, LEFT, RIGHT)) == (True, True)
    assert fused(seen_with({LEVEL: "O1"}, turned, LEFT, RIGHT)) == (False, False)


SWITCHED = {
    "bmm_transpose:off": (False, True),
    "move_transpose_into_mm:off": (True, False),
    " bmm_transpose : off ; move_transpose_into_mm:off; ": (False, False),
    "apply_pattern_passes:off": (False, True),
    "apply_pattern_passes:off;bmm_transpose:on": (False, True),  # the pass that applies it does not run
    "optimize_noop_ops:off": (True, True),
}


@pytest.mark.parametrize("text", SWITCHED)
def test_passes_are_switched_by_name(text: str) -> None:
    assert fused(seen_with({SWITCH: text}, turned, LEFT, RIGHT)) == SWITCHED[text]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bmm_transpose:on", (True, False)),
        ("move_transpose_into_mm:on", (False, True)),
        ("apply_pattern_passes:on", (True, False)),
        ("apply_pattern_passes:on;bmm_transpose:off", (False, False)),
    ],
)
def test_what_is_named_wins_over_the_level(text: str, found: tuple[bool, bool]) -> None:
    assert fused(seen_with({LEVEL: "O1", SWITCH: text}, turned, LEFT, RIGHT)) == found


def switch_file(folder: Path, graph: dict[str, str], ub: dict[str, str] | None = None) -> str:
    path = folder / "fusion.cfg"
    path.write_text(json.dumps({"Switch": {"GraphFusion": graph, "UBFusion": ub or {}}}))
    return str(path)


@pytest.mark.parametrize(
    ("graph", "text", "found"),
    [
        ({"ALL": "off"}, None, (False, False)),
        ({"ALL": "off", "bmm_transpose": "on"}, None, (True, False)),
        ({"move_transpose_into_mm": "off"}, None, (True, False)),
        ({"ALL": "off", "bmm_transpose": "on"}, "bmm_transpose:off;move_transpose_into_mm:on", (False, True)),
    ],
)
def test_a_file_switches_passes(
    graph: dict[str, str], text: str | None, found: tuple[bool, bool], tmp_path: Path
) -> None:
    options = {FILE: switch_file(tmp_path, graph), SWITCH: text}
    assert fused(seen_with(options, turned, LEFT, RIGHT)) == found


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"Switch": 3}', '{"Switch": {"Others": {}}}', '{"Switch": {"UBFusion": {"A": "On"}}}'],
)
def test_a_file_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fusion.cfg"
    path.write_text(text)
    with pytest.raises(BadOption, match=r"fusion\.cfg is not a valid switch file"):
        resolve_settings(make_config({FILE: str(path)}))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_such_pass:on", "there is no pass named 'no_such_pass'"),
        ("view_to_reshape:off", "pass view_to_reshape cannot be disabled: later passes depend on it"),
        ("post_grad_custom_post_pass:off", "cannot be disabled"),
    ],
)
def test_unknown_pass_names_warn(text: str, told: str) -> None:
    with pytest.warns(DegradedWarning, match=told):
        resolve_settings(make_config({SWITCH: text}))
    resolve_settings(make_config({SWITCH: text}))  # once in a process
    with pytest.raises(Degraded, match=told):
        resolve_settings(make_config({SWITCH: text, "engine_config.strict": True}))


def test_a_mandatory_pass_runs_though_it_is_off() -> None:
    seen = []
    options = {
        SWITCH: "view_to_reshape:off",
        "post_grad_custom_post_pass": lambda gm, *_: seen.append(gm.code),
    }
    with pytest.warns(DegradedWarning, match="cannot be disabled"):
        seen_with(options, lambda x: x.view(12) + 1, X)
    assert "aten.reshape.default" in seen[0]


def test_names_of_the_engines_passes_go_to_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config({SWITCH: "AddNFusionPass:off;In-placeAddRmsNormFusionPass:on"})
    logger.setLevel(logging.INFO)
    resolve_settings(config)
    logger.setLevel(logging.ERROR)
    assert config.as_dict()[1]["ge.optimizationSwitch"] == config.ge_config.optimization_switch.value
    said = [line for line in capsys.readouterr().out.splitlines() if "Ascend hardware" in line]
    assert len(said) == 2
    assert "AddNFusionPass" in said[0]


def find_negated_cosine(x: torch.Tensor) -> torch.Tensor:
    return torch.neg(torch.cos(x))


def test_a_users_replacement_is_switched_by_the_name_of_its_function() -> None:
    torchair.register_replacement(
        find_negated_cosine, lambda x: torch.sin(x - torch.pi / 2), [torch.randn(3)]
    )
    assert "Sin" in seen_with({}, lambda x: -x.cos(), X).types
    assert "Cos" in seen_with({SWITCH: "find_negated_cosine:off"}, lambda x: -x.cos(), X).types


OPTIONAL = [name for name, is_mandatory in pass_names().items() if not is_mandatory]


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("off", [slow(["move_transpose_into_mm"]), ["remove_dead_ops"], OPTIONAL], ids=len)
def test_every_pass_that_is_not_mandatory_can_be_left_out(off: list[str], codegen: str) -> None:
    def fn(cache: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([turned(left, right), scaled(cache[:, :4]).view(4, 2, 2).sum().expand(256, 256)])
        cache[1:3].add_(joined[0, :2, None])
        return joined.clone()[:].exp().reshape(-1)

    options = {SWITCH: ";".join(f"{name}:off" for name in off), "engine_config.codegen": codegen}
    seen_with(options, fn, torch.zeros(4, 5), LEFT * 0.01, RIGHT, dynamic=True)


# What is computed when the graph is compiled


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Frequencies as of a rotary embedding: nothing of them depends on the input."""
    return x * (1.0 / (10000 ** (torch.arange(0, 4) / 4)))


@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize(("value", "folds"), [(None, True), (True, True), (False, False)])
@pytest.mark.parametrize("codegen", ["eager", "reference"])
def test_constant_folding_option_removes_ops(
    level: str, value: bool | None, folds: bool, codegen: str
) -> None:
    options = {LEVEL: level, "engine_config.codegen": codegen}
    options |= {} if value is None else {"ge_config.oo_constant_folding": value}
    seen = seen_with(options, scaled, X)
    assert ("Pow" not in seen.types) == folds
    assert (seen.types == ["Data", "Const", "Mul", "NetOutput"]) == folds


def test_what_is_not_worth_a_constant_stays() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        return x[0, 0] + torch.arange(200)[:, None] * torch.arange(200)  # 320 kB

    assert "Mul" in seen_with({}, large, X).types
    assert "Fill" in seen_with({}, lambda x: x + torch.full((4,), 2.0), X).types


def test_a_constant_result_is_new_in_every_call() -> None:
    with watching() as seen:
        run = compile_fn(lambda x: (x + 1, torch.arange(3.0).sin()), {})
        first = run(X)[1].zero_()
        second = run(X)[1]
    torch.testing.assert_close(second, torch.arange(3.0).sin())
    assert first.data_ptr() != second.data_ptr()
    assert "Sin" in seen.types


@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize(("value", "removed"), [(None, True), (True, True), (False, False)])
def test_dead_code_elimination(level: str, value: bool | None, removed: bool) -> None:
    options: dict[str, Any] = {LEVEL: level, SWITCH: "move_transpose_into_mm:on"}
    options |= {} if value is None else {"ge_config.oo_dead_code_elimination": value}
    assert ("Transpose" not in seen_with(options, lambda x: x.t() @ x, X).types) == removed


# The order of ops


def branches(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Branches that are written in turns, of which the one that begins first ends last."""
    a, b = x.sin(), x.cos()
    return b.relu(), a.exp().abs()


WRITTEN = ["Data", "Sin", "Cos", "Relu", "Exp", "Abs", "NetOutput"]
ORDERS = {
    "BFS": ["Data", "Sin", "Cos", "Exp", "Relu", "Abs", "NetOutput"],
    "DFS": ["Data", "Sin", "Exp", "Abs", "Cos", "Relu", "NetOutput"],
    "RDFS": ["Data", "Cos", "Relu", "Sin", "Exp", "Abs", "NetOutput"],
    "StableRDFS": WRITTEN,
}


def ran(seen: Seen, *args: torch.Tensor) -> list[str]:
    """The ops in the order in which the reference engine runs them."""
    found: list[str] = []
    interpret(seen.graphs[-1], args, torch.device("cpu"), lambda op, values: found.append(op.type))
    return found


@pytest.mark.parametrize("strategy", ORDERS)
def test_the_order_of_ops(strategy: str) -> None:
    seen = seen_with({SORTING: strategy}, branches, X)
    assert seen.types == ORDERS[strategy]
    assert ran(seen, X) == ORDERS[strategy][:-1]
    calls = re.findall(r"= (?:torch|aten)_([a-z]+)", seen.runner.program.source)
    assert calls == [type.lower() for type in ORDERS[strategy] if type not in ("Data", "NetOutput")]


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, WRITTEN),  # the default stands for the order of the model unless it is assigned
        ({LEVEL: "O1"}, WRITTEN),
        ({SORTING: "DFS"}, ORDERS["DFS"]),
    ],
)
def test_nothing_moves_unless_asked_for(options: dict[str, Any], order: list[str]) -> None:
    assert seen_with(options, branches, X).types == order


def test_level_o1_sorts_stably_whatever_was_asked_for() -> None:
    with pytest.warns(UserWarning, match="StableRDFS"):
        assert seen_with({LEVEL: "O1", SORTING: "BFS"}, branches, X).types == WRITTEN


@pytest.mark.parametrize("strategy", ORDERS)
def test_ops_of_passes_precede_their_readers(strategy: str) -> None:
    """A packed list of sizes is an input that a pass makes."""
    seen = seen_with(
        {SORTING: strategy}, lambda x, n, m: x.sin().view(n, m), torch.randn(6), 2, 3, dynamic=True
    )
    (packed,) = [op for op in seen.ops("Data") if op.origin is None]
    ops = seen.graphs[-1].ops
    assert ops.index(packed) < ops.index(seen.ops("Reshape")[0])
    if strategy == "StableRDFS":
        assert ops.index(packed) == ops.index(seen.ops("Reshape")[0]) - 1


@torch.library.custom_op("airtest::tell", mutates_args=())
def tell(x: torch.Tensor, word: str) -> torch.Tensor:
    TOLD.append(word)
    return x.clone()


@tell.register_fake
def _(x: torch.Tensor, word: str) -> torch.Tensor:
    return torch.empty_like(x)


TOLD: list[str] = []


@pytest.mark.parametrize("strategy", ORDERS)
@pytest.mark.parametrize("codegen", ["eager", "reference"])
def test_side_effects_keep_their_order(strategy: str, codegen: str) -> None:
    """Random numbers, ops of users and writes to inputs, between ops that could go anywhere."""

    def fn(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = cache.sin()
        first = torch.rand(3)
        cache.add_(x[0])
        a = torch.ops.airtest.tell(x, "a")
        second = torch.rand(3)
        b = torch.ops.airtest.tell(cache.cos(), "b")
        return old.exp(), first * 2, second + b.sum(), a, cache * 2

    run = torch.no_grad()(compile_fn(fn, {SORTING: strategy, "engine_config.codegen": codegen}))
    theirs, ours = torch.ones(4), torch.ones(4)
    torch.manual_seed(7)
    want = fn(theirs, X)
    TOLD.clear()
    torch.manual_seed(7)
    with pytest.warns(DegradedWarning, match="airtest.tell"):
        got = run(ours, X)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours, theirs)
    assert TOLD == ["a", "b"]


# Inputs that are written


def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[1:] += x[1:]
    return cache.sin()


@pytest.mark.parametrize("codegen", ["eager", "reference", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_enable_ref_data_emits_ref_data(codegen: str, dynamic: bool) -> None:
    options = {"experimental_config.enable_ref_data": True, "engine_config.codegen": codegen}
    cache = torch.zeros(4, 6).t()[:, 1:]
    seen = seen_with(options, update, cache, torch.randn(6, 3), dynamic=dynamic)
    ((reference,), data) = seen.ops("RefData"), seen.ops("Data")
    assert reference.attrs["_origin_data_name"].value.endswith("_1")
    shape, strides = ("-1_-1", "1_-1") if dynamic else ("6_3", "1_6")
    assert re.fullmatch(rf"RefData_{shape}_{strides}_-?\d+_\d+", reference.name), reference.name
    assert all("RefData" not in op.name for op in data)
    plain = seen_with({"engine_config.codegen": codegen}, update, cache, torch.randn(6, 3), dynamic=dynamic)
    assert plain.ops("RefData") == []


def test_a_reference_input_is_written_where_it_lies() -> None:
    cache = torch.zeros(3, 4)
    run, where = compile_fn(update, {"experimental_config.enable_ref_data": True}), cache.data_ptr()
    with torch.no_grad():
        for _ in range(2):
            run(cache, X)
    torch.testing.assert_close(cache[1:], X[1:] * 2)
    assert cache.data_ptr() == where


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("name", ["keep_inference_input_mutations", "keep_inference_input_mutation"])
@pytest.mark.filterwarnings(
    "ignore:.*deprecated:DeprecationWarning", "ignore:The following options may:UserWarning"
)
def test_updates_of_inputs_stay_in_the_graph(name: str, mode: str) -> None:
    written = {}

    def look(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        written[value] = any(node.target is torch.ops.aten.copy_.default for node in gm.graph.nodes)

    for value in (True, False):
        options = {f"experimental_config.{name}": value, "post_grad_custom_pre_pass": look}
        seen_with(options, update, torch.zeros(3, 4), X, mode=mode)
    assert written == {True: True, False: False}


# Streams


def on_the_side(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
    """A user's pass that moves the sine to another stream."""
    (sine,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    with gm.graph.inserting_before(sine):
        gm.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["side"]))
    with gm.graph.inserting_after(sine):
        gm.graph.call_function(torch.ops.air.scope_exit.default)


@pytest.mark.parametrize(
    "path", ["ge_config.enable_single_stream", "experimental_config.enable_single_stream"]
)
def test_enable_single_stream_removes_labels(path: str) -> None:
    options: dict[str, Any] = {"post_grad_custom_post_pass": on_the_side}
    (sine,) = seen_with(options, branches, X).ops("Sin")
    assert sine.attrs["_user_stream_label"].value == "side"
    with pytest.warns(
        DegradedWarning, match="ge_config.enable_single_stream is set; unset the option"
    ) as said:
        one = seen_with({**options, path: True}, branches, X)
    assert len(said) == 1
    assert one.types == WRITTEN
    assert "_user_stream_label" not in one.ops("Sin")[0].attrs
    with pytest.raises(Exception, match="stream scopes have no effect") as caught:
        seen_with({**options, path: True, "engine_config.strict": True}, branches, X)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), Degraded)


def test_one_stream_is_what_a_graph_without_scopes_has() -> None:
    assert seen_with({"ge_config.enable_single_stream": True}, branches, X).types == WRITTEN


# Cores


def threads_within(seen: list[int]) -> Any:
    """A function that notes how many threads there are, within a limit of its own and outside of it."""

    @torch.library.custom_op("torchair_tests::threads", mutates_args=())
    def threads(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x.clone()

    threads.register_fake(torch.empty_like)
    torchair.register_fx_node_ge_converter(torch.ops.torchair_tests.threads.default)(
        lambda x: torchair.ge.custom_op("Threads", inputs={"x": x}, outputs=["y"])
    )

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = threads(x + 1)
        with torchair.scope.limit_core_num(1, 1):
            x = threads(x * 2)
        return threads(x - 1)

    return fn


@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
def test_cores_of_the_session(codegen: str) -> None:
    seen: list[int] = []
    fn, there = threads_within(seen), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for cores, wanted in (({}, [4, 1, 4]), ({"ge_config.aicore_num": "2|48"}, [2, 1, 2])):
            made = compile_fn(fn, {**cores, "engine_config.codegen": codegen})
            torch.compiler.reset()
            seen.clear()
            torch.testing.assert_close(made(X), (X + 1) * 2 - 1)
            assert seen == wanted
            assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(there)
    with pytest.raises(Exception, match="cube and vector cores, joined by"):
        compile_fn(branches, {"ge_config.aicore_num": "many"})(X)


# Recordings of sizes


@pytest.mark.parametrize(
    ("limit", "records"), [(None, 1), (0, 1), (5, 1), (6, 0), (-1, 0)], ids=lambda value: f"{value}"
)
def test_small_graphs_stay_dynamic(limit: int | None, records: int, row: SimulatedDevice) -> None:
    options = {} if limit is None else {"experimental_config.static_model_ops_lower_limit": limit}
    with watching() as seen, torch.no_grad():
        run = compile_fn(branches, options, dynamic=True)
        for _ in range(PATIENCE + 2):
            torch.testing.assert_close(run(X), branches(X))
        assert row.captures == records if records else row.records == 0
        assert seen.types == WRITTEN
        assert ("static_model_ops_lower_limit" in str(seen.runner.why_not)) == (not records)
        torch.compiler.reset()
        static, before = compile_fn(branches, options, dynamic=False), row.records
        for _ in range(2):
            static(X)
    assert row.records > before, "what has no symbols is recorded in any case"
