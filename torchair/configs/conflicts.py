"""Resolve conflicting options: which value is replaced, and the warning for the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES, walk

_DEFAULTS = {path: row.default for path, row in walk(OptionTree)}


class Interaction(NamedTuple):
    """In `modes`, if all `when` options have these values (... is any set value), `path` becomes `value`."""

    modes: tuple[str, ...]
    when: Mapping[str, Any]
    path: str
    value: Any
    why: str
    warns_on_default: bool = True  # False: no warning if the value was not set


INTERACTIONS = (
    Interaction(
        CAPTURE_MODES,
        {"aclgraph_config.use_custom_pool": ..., "debug.aclgraph.disable_mempool_reuse_in_same_fx": False},
        "debug.aclgraph.disable_mempool_reuse_in_same_fx",
        True,
        "use_graph_pool disables reuse_graph_pool_in_same_fx: in a shared pool, one graph could overwrite "
        "live outputs of another",
    ),
    Interaction(
        CAPTURE_MODES,
        {
            "dump_config.enable_dump": True,
            "dump_config.data_dump_stage": "optimized",
            "experimental_config.aclgraph._super_kernel_optimize": True,
        },
        "dump_config.enable_dump",
        False,
        "super_kernel_optimize disables dump_tensor_data at stage 'optimized'; "
        "set data_dump_stage='original' to dump tensors",
    ),
    Interaction(
        CAPTURE_MODES,
        {"capture.unsafe_skip_npugraph_capture_validation": True, "capture.force_recapture": True},
        "capture.force_recapture",
        False,
        "unsafe_skip_npugraph_capture_validation disables force_recapture",
    ),
    Interaction(
        GRAPH_MODES,
        {"ge_config.oo_level": "O1"},
        "experimental_config.topology_sorting_strategy",
        "StableRDFS",
        "oo_level='O1' sets topology_sorting_strategy to StableRDFS",
        warns_on_default=False,
    ),
)


def resolve(frozen: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings with conflicts resolved, and warning texts, which the caller emits."""
    settled, warnings = dict(frozen), list[str]()
    for rule in INTERACTIONS:
        holds = all(_fits(frozen[path], wanted) for path, wanted in rule.when.items())
        if not holds or frozen["mode"] not in rule.modes or frozen[rule.path] == rule.value:
            continue
        settled[rule.path] = rule.value
        if rule.warns_on_default or frozen[rule.path] != _DEFAULTS[rule.path]:
            warnings.append(rule.why)
    return settled, warnings


def _fits(value: Any, wanted: Any) -> bool:
    return value is not None if wanted is ... else value == wanted
