"""`as_dict`: the engine's keys and encodings, and the rule that session options are set once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.configs.expected import GLOBAL, LOCAL
from torchair.configs import engine_options
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.engine_options import check_global_options
from torchair.configs.option import assign

# What is kept is tested here, whether something acts on it or not.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect in this version:torchair.DegradedWarning")


def test_as_dict_of_defaults_has_default_keys() -> None:
    assert CompilerConfig().as_dict() == (LOCAL, GLOBAL)


@pytest.mark.parametrize(
    ("path", "value", "local", "session"),
    [
        ("mode", "npugraph_ex", {"mode": "npugraph_ex"}, {}),
        ("debug.aclgraph.clone_input", 0, {"clone_input": "0"}, {}),
        ("debug.aclgraph.static_capture_size_limit", 5, {"static_capture_size_limit": "5"}, {}),
        ("experimental_config.topology_sorting_strategy", "BFS", {"ge.topoSortingMode": "0"}, {}),
        ("experimental_config.topology_sorting_strategy", "RDFS", {"ge.topoSortingMode": "2"}, {}),
        ("experimental_config.memory_efficiency", True, {"ge.featureBaseRefreshable": "1"}, {}),
        (
            "experimental_config.static_model_ops_lower_limit",
            -1,
            {"ge.exec.static_model_ops_lower_limit": "-1"},
            {},
        ),
        ("experimental_config.cc_parallel_enable", True, {}, {"ge.exec.enableEngineParallel": "1"}),
        ("ge_config.enable_single_stream", True, {}, {"ge.enableSingleStream": "true"}),
        ("ge_config.oo_constant_folding", False, {}, {"ge.oo.constantFolding": "false"}),
        ("ge_config.oo_dead_code_elimination", True, {}, {"ge.oo.deadCodeElimination": "true"}),
        ("ge_config.aicore_num", "24|48", {}, {"ge.aicoreNum": "24|48"}),
        ("ge_config.optimization_switch", "A:on", {}, {"ge.optimizationSwitch": "A:on"}),
        ("experimental_config.separate_atomic_clean", False, {"ge.exec.atomicCleanPolicy": "0"}, {}),
        ("experimental_config.enable_single_stream", True, {}, {"ge.enableSingleStream": "true"}),
        ("ge_config.oo_level", "O1", {"ge.topoSortingMode": "3"}, {"ge.oo.level": "O1"}),
        ("fusion_config.fusion_switch_file", __file__, {}, {"ge.fusionSwitchFile": __file__}),
        ("aoe_config.aoe_mode", "2", {"aoe_mode": "2", "work_path": "./"}, {}),
        ("aoe_config.aoe_config_file", __file__, {}, {}),
        ("dump_config.dump_mode", "input", {}, {}),
    ],
)
def test_as_dict_encodes_each_option(
    path: str, value: Any, local: dict[str, str], session: dict[str, str]
) -> None:
    config = CompilerConfig()
    assign(config, path, value)
    assert config.as_dict() == (LOCAL | local, GLOBAL | session)


def test_level_o1_wins_over_the_chosen_order() -> None:
    config = CompilerConfig()
    config.experimental_config.topology_sorting_strategy = "BFS"
    config.ge_config.oo_level = "O1"
    assert config.as_dict()[0]["ge.topoSortingMode"] == "3"


def test_dump_keys_come_with_the_switch_and_make_the_folder(tmp_path: Path) -> None:
    config, file = CompilerConfig(), tmp_path / "dump.json"
    file.write_text("{}")
    config.dump_config.dump_path = tmp_path
    config.dump_config.dump_config_path = file
    assert config.as_dict()[1] == GLOBAL | {"ge_dump_with_acl_config": str(file)}
    config.dump_config.enable_dump = True
    folder = tmp_path / "worldsize1_global_rank0"
    assert not folder.exists()
    assert config.as_dict()[1] == GLOBAL | {
        "ge_dump_with_acl_config": str(file),
        "ge.exec.enableDump": "1",
        "ge.exec.dumpPath": str(folder),
        "ge.exec.dumpMode": "all",
        "ge.quant_dumpable": "0",
        "ge.exec.dumpStep": "",
        "ge.exec.dumpLayer": "",
        "ge.exec.dumpData": "tensor",
    }
    assert os.path.isdir(folder)


@pytest.fixture
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_options, "_session", None)


@pytest.mark.usefixtures("_no_session")
def test_a_running_engine_refuses_other_session_options() -> None:
    check_global_options({"a": "1", "b": "2"}, engine=True)
    check_global_options({"a": "1"}, engine=True)
    with pytest.raises(ValueError, match="b: '3', running with '2'"):
        check_global_options({"a": "1", "b": "3"}, engine=True)
    with pytest.raises(ValueError, match="c: '1', running with None"):
        check_global_options({"c": "1"}, engine=True)


@pytest.mark.usefixtures("_no_session")
def test_without_an_engine_two_configs_may_differ() -> None:
    check_global_options({"a": "1"}, engine=False)
    check_global_options({"a": "2"}, engine=False)
    check_global_options({"a": "3"}, engine=True)
