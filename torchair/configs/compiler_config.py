"""Define `torchair.CompilerConfig`, the tree of all options. Each module in `groups/` holds one group of
rows.

The fields of a row are defined in `option.py`; the accepted values of each kind in `kinds.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torchair.configs.engine_options import engine_options
from torchair.configs.groups.aclgraph_config import AclGraphConfig
from torchair.configs.groups.aoe_config import AoeConfig
from torchair.configs.groups.capture import CaptureConfig
from torchair.configs.groups.debug import DebugConfig
from torchair.configs.groups.dump_config import DumpConfig
from torchair.configs.groups.engine_config import EngineConfig
from torchair.configs.groups.experimental_config import SORTING, ExperimentalConfig
from torchair.configs.groups.export import ExportConfig
from torchair.configs.groups.fusion_config import FusionConfig
from torchair.configs.groups.ge_config import GeConfig
from torchair.configs.groups.inference_config import InferenceConfig
from torchair.configs.json_form import JsonForm
from torchair.configs.kinds import Choice, Function
from torchair.configs.option import ALL_MODES, AUTO, REDUCE, FlatView, Nested, Option, flat_names, flat_rows
from torchair.configs.option_kinds import local
from torchair.core.errors import BadOption


class OptionTree(JsonForm):
    """Hold all groups and rows, without the flat names."""

    mode = Option(
        AUTO,
        "How the graph runs: compiled as a graph (`max-autotune`), or recorded and replayed (capture modes).",
        Choice(*ALL_MODES),
        engine=local("mode"),
        deprecated={REDUCE: "npugraph_ex"},
        effect="tests/backend/dynamo/test_entry_points.py::test_the_modes_of_torch_compile_act",
    )
    post_grad_custom_pre_pass = Option(
        None,
        "User-defined FX pass, called as `f(gm, example_inputs, config)` before the built-in passes.",
        Function(),
        flat="post_grad_custom_pre_pass",
        effect=""
        "tests/integration/test_option_effects.py::test_custom_pass_runs_before_or_after_builtin_passes",
    )
    post_grad_custom_post_pass = Option(
        None,
        "User-defined FX pass, called as `f(gm, example_inputs, config)` after the built-in passes.",
        Function(),
        flat="post_grad_custom_post_pass",
        effect=""
        "tests/integration/test_option_effects.py::test_custom_pass_runs_before_or_after_builtin_passes",
    )
    debug = Nested(DebugConfig)
    export = Nested(ExportConfig)
    dump_config = Nested(DumpConfig)
    fusion_config = Nested(FusionConfig)
    inference_config = Nested(InferenceConfig)
    aoe_config = Nested(AoeConfig)
    experimental_config = Nested(ExperimentalConfig)
    ge_config = Nested(GeConfig)
    aclgraph_config = Nested(AclGraphConfig, fixed=True)
    capture = Nested(CaptureConfig)
    engine_config = Nested(EngineConfig)

    def __init__(self) -> None:
        super().__init__()

    def as_dict(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the options of the graph and of the session, with the keys and strings of the engine.

        Returns:
            Two dictionaries: the options of one graph, and the options of the session.
        """
        local, session = engine_options(self)
        if self.ge_config.oo_level.raw == "O1":
            local["ge.topoSortingMode"] = SORTING["StableRDFS"]
        return local, session


@cache
def names_of(tree: type[OptionTree]) -> type[FlatView]:
    """Return the class of flat names for `npugraphex_config` and `torch.compile(options=...)`."""

    class NpuGraphExNames(
        FlatView, paths=flat_names(tree, ex=False), rows=flat_rows(tree, ex=False), open=True
    ):
        """Provide other names for options in the tree; it adds no options."""

    return NpuGraphExNames


class CompilerConfig(OptionTree):
    """Configuration of a torchair backend: a tree of options, each checked when it is assigned.

    Every option has a default. Assigning an invalid value or an unknown name raises an error that lists the
    valid ones. Configs compare by value and can be copied; `to_json()` and `from_json()` write and read them.
    `docs/reference/options.md` lists all options.

    Example:
        >>> config = torchair.CompilerConfig()
        >>> config.mode = "reduce-overhead"
        >>> config.debug.graph_dump.type = "py"
        >>> backend = torchair.get_npu_backend(compiler_config=config)
    """

    @property
    def npugraphex_config(self) -> FlatView:
        return names_of(type(self))(self, "npugraphex_config.")

    @npugraphex_config.setter
    def npugraphex_config(self, value: Any) -> None:
        raise BadOption(
            "npugraphex_config cannot be replaced", next="assign the options inside it one by one"
        )
