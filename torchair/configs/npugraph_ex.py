"""Define the options of backend `npugraph_ex`: flat names of options in the torchair tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchair.configs.compiler_config import OptionTree
from torchair.configs.json_form import JsonForm
from torchair.configs.kinds import Choice, IntList
from torchair.configs.option import CAPTURE_MODES, FlatView, Option, cell, flat_names, flat_rows

MODE = CAPTURE_MODES[-1]
_ROWS = flat_rows(OptionTree, ex=True)
_RANGE = "_vllm_aclnn_static_kernel_sym_range"

# Options that `as_dict` exports: always, or only together with the switch on the left.
_EXPORTED = {
    "": (
        "force_eager",
        "reuse_graph_pool_in_same_fx",
        "capture_limit",
        "clone_input",
        "clone_output",
        "deadlock_check",
        "capture_error_mode",
        "force_recapture",
        "unsafe_skip_npugraph_capture_validation",
        "remove_noop_ops",
        "pattern_fusion_pass",
        "frozen_parameter",
    ),
    "disable_static_kernel_compile_cache": ("disable_static_kernel_compile_cache",),
    "static_kernel_compile": ("static_kernel_compile", "_vllm_aclnn_static_kernel_sym_index", _RANGE),
    "super_kernel_optimize": (
        "super_kernel_optimize",
        "super_kernel_optimize_options",
        "super_kernel_debug_options",
    ),
    "dump_tensor_data": ("dump_tensor_data", "data_dump_dir", "data_dump_stage"),
}


class CompilerConfig(
    FlatView,
    JsonForm,
    paths={"mode": "mode"} | flat_names(OptionTree, ex=True),
    # Unset means all values here, but None that is assigned is an empty list, which matches no value.
    rows=_ROWS | {_RANGE: replace(_ROWS[_RANGE], kind=IntList(none_is_empty=True))},
):
    """Configuration of an `npugraph_ex` backend: flat options, each checked when it is assigned.

    The options are flat names of options in `torchair.CompilerConfig`; booleans read as booleans.
    `docs/reference/options.md` lists them.

    Example:
        >>> config = torchair.npugraph_ex.CompilerConfig()
        >>> config.force_eager = True
    """

    _bools_as_text = False
    mode = Option(MODE, "Marks the kind of configuration.", Choice(MODE), modes=(MODE,))

    def __init__(self) -> None:
        tree = OptionTree()
        tree.mode = MODE
        super().__init__(tree)

    def as_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of one graph and of the session; the second dictionary is empty."""
        local: dict[str, Any] = {}
        for switch, names in _EXPORTED.items():
            if not switch or cell(self, switch):
                local.update({name: cell(self, name).value for name in names})
        return local, {}
