"""Options that overrule each other."""

from __future__ import annotations

from typing import Any

import pytest

from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.conflicts import INTERACTIONS, resolve
from torchair.configs.option import walk
from torchair.configs.resolve import apply_options, freeze

SUPER_DUMP = {"dump_tensor_data": True, "super_kernel_optimize": True}


def settle(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    config = npugraph_ex.CompilerConfig()
    apply_options(config, options)
    return resolve(freeze(config))


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        ({"use_graph_pool": (0, 1)}, "debug.aclgraph.disable_mempool_reuse_in_same_fx", True),
        (SUPER_DUMP, "dump_config.enable_dump", False),
        (
            {"unsafe_skip_npugraph_capture_validation": True, "force_recapture": True},
            "capture.force_recapture",
            False,
        ),
    ],
)
def test_one_gives_way_with_a_word(options: dict[str, Any], path: str, value: Any) -> None:
    settled, said = settle(options)
    assert settled[path] is value
    assert len(said) == 1
    assert all(name in said[0] for name in options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_graph_pool": (0, 1), "reuse_graph_pool_in_same_fx": False},
        {"dump_tensor_data": True},
        SUPER_DUMP | {"data_dump_stage": "original"},
        {"force_recapture": True},
    ],
)
def test_nothing_to_settle(options: dict[str, Any]) -> None:
    config = npugraph_ex.CompilerConfig()
    apply_options(config, options)
    assert settle(options) == (freeze(config), [])


def test_rules_of_capture_do_not_touch_graph_mode() -> None:
    config = CompilerConfig()
    apply_options(config, {"use_graph_pool": (0, 1)})
    assert resolve(freeze(config)) == (freeze(config), [])


@pytest.mark.parametrize(("order", "words"), [("DFS", 0), ("BFS", 1), ("StableRDFS", 0)])
def test_level_o1_sets_the_order(order: str, words: int) -> None:
    config = CompilerConfig()
    config.experimental_config.topology_sorting_strategy = order
    config.ge_config.oo_level = "O1"
    settled, said = resolve(freeze(config))
    assert settled["experimental_config.topology_sorting_strategy"] == "StableRDFS"
    assert len(said) == words


def test_rules_name_options_and_values_that_exist() -> None:
    rows = dict(walk(CompilerConfig))
    for rule in INTERACTIONS:
        assert rows[rule.path].kind.check(rule.path, rule.value) == rule.value
        assert set(rule.when) <= set(rows)
