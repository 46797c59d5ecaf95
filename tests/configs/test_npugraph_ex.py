"""The flat config of npugraph_ex: names, defaults, reading rules and what it exports."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from tests.configs.expected import EX, OWN_FLAT
from tests.configs.strategies import REFUSED
from torchair.configs import kinds
from torchair.configs.npugraph_ex import CompilerConfig
from torchair.configs.option import walk

ROWS = dict(walk(CompilerConfig))
ALWAYS = {
    "force_eager": False,
    "reuse_graph_pool_in_same_fx": True,
    "capture_limit": "64",
    "clone_input": True,
    "clone_output": False,
    "deadlock_check": False,
    "capture_error_mode": "global",
    "force_recapture": False,
    "unsafe_skip_npugraph_capture_validation": False,
    "remove_noop_ops": True,
    "pattern_fusion_pass": True,
    "frozen_parameter": False,
}


def test_the_config_has_exactly_the_promised_names() -> None:
    assert len(EX) == 30
    assert {name: row.default for name, row in ROWS.items() if name not in OWN_FLAT} == EX
    assert {name: ROWS[name].default for name in OWN_FLAT} == {
        "codegen": "auto",
        "compile_budget_s": None,
        "compile_workers": 1,
        "program_cache_mb": 2048,
        "memory_budget": None,
        "verify": False,
        "strict": False,
    }


@pytest.mark.parametrize("name", ROWS)
def test_flat_option_has_documented_default(name: str) -> None:
    option, default = getattr(CompilerConfig(), name), ROWS[name].default
    kept = default is None or isinstance(default, bool)
    assert option.value == (default if kept else str(default))
    assert type(option.value) is (type(default) if kept else str)
    assert option.raw == option.default == default
    assert bool(option) == bool(default)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.kind == kinds.BOOL])
def test_booleans_read_as_booleans(name: str) -> None:
    config = CompilerConfig()
    for value in (0, 1, False, True):
        setattr(config, name, value)
        assert getattr(config, name).value is bool(value)
        assert bool(getattr(config, name)) is bool(value)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (name, value, error)
        for name, row in ROWS.items()
        for value, error in REFUSED[type(row.kind)]
        if name != "memory_budget" or value is not None
    ],
)
def test_flat_option_refuses_invalid_value(name: str, value: Any, error: type[Exception]) -> None:
    config = CompilerConfig()
    with pytest.raises(error, match=re.escape(name)):
        setattr(config, name, value)
    assert config == CompilerConfig()


def test_a_refused_choice_quotes_value_type_and_list() -> None:
    with pytest.raises(ValueError, match=r"'strict' \(str\)\n.*'global', 'thread_local', 'relaxed'"):
        CompilerConfig().capture_error_mode = "strict"


def test_unknown_names_are_refused_with_all_names() -> None:
    with pytest.raises(ValueError, match="clone_inputs") as caught:
        CompilerConfig().clone_inputs = True
    assert all(name in str(caught.value) for name in EX)


def test_the_mode_is_fixed() -> None:
    config = CompilerConfig()
    assert config.mode.value == "npugraph_ex"
    with pytest.raises(ValueError, match="max-autotune"):
        config.mode = "max-autotune"


def test_none_is_an_empty_range_only_when_assigned() -> None:
    config = CompilerConfig()
    assert config._vllm_aclnn_static_kernel_sym_range.raw is None
    config._vllm_aclnn_static_kernel_sym_range = None
    assert config._vllm_aclnn_static_kernel_sym_range.raw == []
    config._vllm_aclnn_static_kernel_sym_range = (1, 2)
    assert config._vllm_aclnn_static_kernel_sym_range.raw == [1, 2]


def test_the_pool_reads_as_it_is() -> None:
    config = CompilerConfig()
    config.use_graph_pool = (0, 3)
    assert config.use_graph_pool.value == (0, 3)


def test_export_of_defaults() -> None:
    assert CompilerConfig().as_dict() == (ALWAYS, {})


@pytest.mark.parametrize(
    ("switch", "extra"),
    [
        ("disable_static_kernel_compile_cache", {}),
        (
            "static_kernel_compile",
            {"_vllm_aclnn_static_kernel_sym_index": "0", "_vllm_aclnn_static_kernel_sym_range": None},
        ),
        (
            "super_kernel_optimize",
            {"super_kernel_optimize_options": None, "super_kernel_debug_options": None},
        ),
        ("dump_tensor_data", {"data_dump_dir": "./", "data_dump_stage": "optimized"}),
    ],
)
def test_export_needs_its_switch(switch: str, extra: dict[str, Any]) -> None:
    config = CompilerConfig()
    setattr(config, switch, True)
    assert config.as_dict() == (ALWAYS | {switch: True} | extra, {})


def test_copies_are_equal_and_independent(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.data_dump_dir = tmp_path
    twin = copy.deepcopy(config)
    assert twin == config != CompilerConfig()
    twin.inplace_pass = False
    assert twin != config
    assert config.inplace_pass.value is True
    with pytest.raises(TypeError):
        hash(config)
