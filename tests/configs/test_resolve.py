"""Flat options, frozen settings and the warnings a config calls for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs.expected import CAPTURE, EX, GRAPH, MORE, OWN, OWN_FLAT, SHARED_FLAT
from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import assign
from torchair.configs.resolve import (
    apply_options,
    cache_key_paths,
    deprecations,
    flat_option_names,
    freeze,
    mode_warnings,
    with_options,
)

# What is kept is tested here, whether something acts on it or not.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect in this version:torchair.DegradedWarning")

TAIL = ("set_dim_gears", "dynamo_export", "torchair.scope")
OPTIONS = {
    "clone_input": 0,
    "inplace_pass": False,
    "capture_limit": 9,
    "codegen": "eager",
    "memory_budget": 64,
}
CONFIGS = [CompilerConfig, npugraph_ex.CompilerConfig]


def test_flat_names_of_both_backends() -> None:
    assert len(SHARED_FLAT) == 23
    assert set(flat_option_names(CompilerConfig())) == set(SHARED_FLAT) | set(OWN_FLAT)
    assert set(flat_option_names(npugraph_ex.CompilerConfig())) == set(EX) | set(OWN_FLAT)


@pytest.mark.parametrize("kind", CONFIGS)
def test_options_reach_the_same_paths(kind: Any) -> None:
    config = kind()
    apply_options(config, OPTIONS)
    frozen = freeze(config)
    assert frozen["debug.aclgraph.clone_input"] is False
    assert frozen["debug.aclgraph.disable_reinplace_inplaceable_ops_pass"] is True
    assert frozen["debug.aclgraph.static_capture_size_limit"] == 9
    assert frozen["engine_config.codegen"] == "eager"
    assert frozen["engine_config.memory_budget"] == 64
    assert kind() == kind()
    assert freeze(kind())["debug.aclgraph.clone_input"] is True


@pytest.mark.parametrize("kind", CONFIGS)
def test_unknown_options_are_refused_before_any_is_applied(kind: Any) -> None:
    config = kind()
    with pytest.raises(ValueError, match="'no_such'") as caught:
        apply_options(config, {"clone_input": False, "no_such": 1})
    assert ", ".join(sorted(flat_option_names(config))) in str(caught.value)
    assert config == kind()


@pytest.mark.parametrize("name", sorted(set(EX) - set(SHARED_FLAT)))
def test_names_of_npugraph_ex_only_are_refused_by_the_tree(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        apply_options(CompilerConfig(), {name: EX[name]})


def test_options_must_be_a_dict() -> None:
    with pytest.raises(TypeError, match="options must be a dict"):
        apply_options(CompilerConfig(), ["clone_input"])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CONFIGS)
def test_with_options_leaves_the_config_alone(kind: Any) -> None:
    config = kind()
    twin = with_options(config, OPTIONS)
    assert type(twin) is kind
    assert twin != config == kind() == with_options(config, None)


def test_frozen_defaults_are_plain_and_alike() -> None:
    frozen = freeze(CompilerConfig())
    assert frozen == GRAPH | CAPTURE | MORE | OWN
    assert freeze(npugraph_ex.CompilerConfig()) == frozen | {"mode": "npugraph_ex"}


def test_options_only_npugraph_ex_has_lie_under_capture() -> None:
    config = npugraph_ex.CompilerConfig()
    apply_options(config, {"force_recapture": True, "capture_error_mode": "relaxed", "deadlock_check": 1})
    frozen = freeze(config)
    assert frozen["capture.force_recapture"] is True
    assert frozen["capture.capture_error_mode"] == "relaxed"
    assert frozen["capture.deadlock_check"] is True
    assert frozen["debug.deadlock_check"] is False


def test_frozen_values_do_not_follow_the_config() -> None:
    config, options = CompilerConfig(), {"split_mode": 1}
    config.npugraphex_config.super_kernel_optimize_options = options
    frozen = freeze(config)
    options["split_mode"] = 2
    config.mode = "npugraph_ex"
    assert frozen["experimental_config.aclgraph._super_kernel_optimize_options"] == {"split_mode": 1}
    assert frozen["mode"] == "max-autotune"


def test_the_cache_key_leaves_out_observers_only() -> None:
    left_out = set(freeze(CompilerConfig())) - cache_key_paths()
    assert left_out == {
        "debug.graph_dump.type",
        "debug.graph_dump.path",
        "debug.data_dump.path",
        "debug.data_dump.filter",
        "debug.fx_summary.path",
        "ge_config.export_compile_stat",
        "export.export_path_dir",
        "export.export_name",
        "export.weight_name",
        "export.inputs_name",
        "capture.record_statistics_debug_info",
        "capture.disable_static_kernel_compile_cache",
        "engine_config.compile_budget_s",
        "engine_config.compile_workers",
        "engine_config.program_cache_mb",
        "engine_config.verify",
        "engine_config.strict",
    }


IDLE_IN_GRAPH_MODE = [
    ("debug.aclgraph.disable_reinplace_input_mutated_ops_pass", True),
    ("debug.aclgraph.disable_reinplace_inplaceable_ops_pass", True),
    ("debug.aclgraph.clone_input", False),
    ("experimental_config.aclgraph._aclnn_static_shape_kernel", True),
    ("experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir", "/tmp/kernels"),
]
IDLE_IN_REDUCE_OVERHEAD = [
    ("inference_config.dynamic_gears_merge_policy", "product"),
    ("debug.fx_summary.type", "csv"),
    ("dump_config.enable_dump", True),
    ("ge_config.export_compile_stat", "0"),
    ("ge_config.export_compile_stat", "1"),
    ("export.experimental.enable_record_nn_module_stack", True),
    ("export.experimental.auto_atc_config_generated", True),
    ("ge_config.enable_single_stream", True),
    ("ge_config.oo_level", "O1"),
    ("ge_config.oo_constant_folding", True),
    ("ge_config.oo_constant_folding", False),
    ("ge_config.oo_dead_code_elimination", False),
    ("experimental_config.topology_sorting_strategy", "BFS"),
    ("experimental_config.cc_parallel_enable", True),
    ("experimental_config.enable_ref_data", True),
    ("experimental_config.tiling_schedule_optimize", True),
    ("experimental_config.enable_view_optimize", False),
    ("fusion_config.fusion_switch_file", __file__),
    ("experimental_config.static_model_ops_lower_limit", 2),
    ("ge_config.aicore_num", "24|48"),
    ("ge_config.optimization_switch", "A:off"),
]
ALWAYS_IDLE = "experimental_config.enable_view_optimize"


def listed(config: CompilerConfig) -> set[str]:
    text, paths = mode_warnings(config)
    found = [line.removeprefix("config.") for line in (text or "").splitlines() if line.startswith("config.")]
    assert [line.partition(":")[0] for line in found] == paths
    return set(found)


@pytest.mark.parametrize(("path", "value"), IDLE_IN_GRAPH_MODE)
def test_capture_options_are_idle_in_graph_mode(path: str, value: Any) -> None:
    config = CompilerConfig()
    assert mode_warnings(config) == (None, [])
    assign(config, path, value)
    assert listed(config) == {f"{path}:{value}"}


@pytest.mark.parametrize(("path", "value"), IDLE_IN_REDUCE_OVERHEAD)
def test_graph_options_are_idle_in_reduce_overhead(path: str, value: Any) -> None:
    config = CompilerConfig()
    assign(config, path, value)
    assert mode_warnings(config) == (None, [])
    config.mode = "reduce-overhead"
    assert listed(config) == {f"{ALWAYS_IDLE}:True", f"{path}:{value}"} - (
        {f"{ALWAYS_IDLE}:True"} if path == ALWAYS_IDLE else set()
    )


def test_reduce_overhead_always_warns_and_ends_with_the_tail() -> None:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    assert listed(config) == {f"{ALWAYS_IDLE}:True"}
    last = (mode_warnings(config)[0] or "").splitlines()[-1]
    assert all(word in last for word in TAIL)


def test_npugraph_ex_warns_of_nothing() -> None:
    config = CompilerConfig()
    config.mode = "npugraph_ex"
    for path, value in IDLE_IN_GRAPH_MODE + IDLE_IN_REDUCE_OVERHEAD:
        assign(config, path, value)
    for quiet in (config, npugraph_ex.CompilerConfig()):
        assert mode_warnings(quiet) == (None, [])
        assert deprecations(quiet) == []


def test_reduce_overhead_is_deprecated() -> None:
    config = CompilerConfig()
    assert deprecations(config) == []
    config.mode = "reduce-overhead"
    assert deprecations(config) == ["config.mode='reduce-overhead' is deprecated; use 'npugraph_ex'"]
