"""Resolve the option tree into plain typed values. Code after the entry points reads only these values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torchair.backend.settings.autotune_config import AutotuneConfig, read_plan
from torchair.capture import Policy
from torchair.configs.binding import by_name, default_of, from_row, read
from torchair.configs.compiler_config import OptionTree
from torchair.configs.conflicts import resolve
from torchair.configs.option import CAPTURE_MODES, touched, walk
from torchair.configs.pass_switches import ENGINE_PASSES, PassSwitches, pass_switches
from torchair.configs.resolve import Config, freeze, tree_of
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType
from torchair.core.log import logger
from torchair.debug.dumps.options import DebugOptions
from torchair.ops.streams import core_limits
from torchair.passes import names as pass_names

PATIENCE = 3  # calls of one size in graph mode before it is recorded
# Flags of passes that plan memory. They have no effect if the code generator plans memory itself.
IN_PLACE = ("remove_cat_ops", "inplace_pass", "input_inplace_pass")


@dataclass(frozen=True)
class Settings:
    """The resolved options of one compilation, created by `resolve_settings` or `Settings.of`."""

    # All options by path and by flat name. Options that the backend reads have a field.
    options: Mapping[str, Any] = field(repr=False)
    mode: str = from_row("mode")
    user_pre_pass: Callable[..., Any] | None = from_row("post_grad_custom_pre_pass")
    user_post_pass: Callable[..., Any] | None = from_row("post_grad_custom_post_pass")
    run_eagerly: bool = from_row("debug.run_eagerly")
    fold_views: bool = from_row("experimental_config.enable_view_optimize")
    soc: str = from_row("engine_config.soc")
    gears_policy: str = from_row("inference_config.dynamic_gears_merge_policy")
    keep_mutations: bool = from_row("experimental_config.keep_inference_input_mutations")
    frozen_parameter: bool = from_row("experimental_config.frozen_parameter")
    fuses_before_autograd: bool = from_row("experimental_config.npu_fx_pass")
    memory_efficiency: bool = from_row("experimental_config.memory_efficiency")
    joint_graph: bool = from_row("experimental_config.aot_config_enable_joint_graph")
    loss_index: int | None = from_row("experimental_config.aot_config_output_loss_index")
    deadlock_check: bool = from_row("capture.deadlock_check")
    graph_deadlock_check: bool = from_row("debug.deadlock_check")
    static_kernels: bool = from_row("experimental_config.aclgraph._aclnn_static_shape_kernel")
    static_kernel_symbol: int = from_row("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index")
    static_kernel_values: list[int] | None = from_row(
        "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"
    )
    static_kernel_folder: str | None = from_row(
        "experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir"
    )
    static_kernels_uncached: bool = from_row("capture.disable_static_kernel_compile_cache")
    tuning_mode: str | None = from_row("aoe_config.aoe_mode")
    tuning_folder: str = from_row("aoe_config.work_path")
    tuning_file: str | None = from_row("aoe_config.aoe_config_file")
    codegen: str = from_row("engine_config.codegen")
    compile_budget: int | None = from_row("engine_config.compile_budget_s")
    compile_workers: int = from_row("engine_config.compile_workers")
    program_cache_mb: int = from_row("engine_config.program_cache_mb")
    cores: str | None = from_row("ge_config.aicore_num")
    level: str = from_row("ge_config.oo_level")
    constant_folding: bool | None = from_row("ge_config.oo_constant_folding")
    dead_code_elimination: bool | None = from_row("ge_config.oo_dead_code_elimination")
    switch_text: str | None = from_row("ge_config.optimization_switch")
    switch_file: str | None = from_row("fusion_config.fusion_switch_file")
    sorting: str = from_row("experimental_config.topology_sorting_strategy")
    static_ops: int | None = from_row("experimental_config.static_model_ops_lower_limit")
    statistics: str = from_row("ge_config.export_compile_stat")
    module_stacks: bool = from_row("export.experimental.enable_record_nn_module_stack")
    cluster_templates: bool = from_row("export.experimental.auto_atc_config_generated")
    verify: bool = from_row("engine_config.verify")
    strict: bool = from_row("engine_config.strict")
    # With codegen "auto", the first call waits for background compiles.
    waits: bool = False
    # The option tree itself, which is only passed to user-defined passes.
    config: Any = None
    # The paths of options that were assigned (even to their default) and have an effect in this mode.
    assigned: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Mapping[str, Any], config: Config | None = None) -> Settings:
        """Create settings from option values by path; all other options have their defaults."""
        tree = OptionTree if config is None else type(tree_of(config))
        options, rows = by_name(tree, values), dict(walk(tree))
        given = values if config is None else touched(tree_of(config))
        assigned = frozenset(path for path in given if options["mode"] in rows[path].modes)
        return read(cls, options, options=options, config=config, assigned=assigned)

    @property
    def captures(self) -> bool:
        """Whether the mode is capture mode: record and replay, without the IR."""
        return self.mode in CAPTURE_MODES

    @property
    def has_user_passes(self) -> bool:
        """Whether there are user-defined passes, which may change what the graph returns."""
        return self.user_pre_pass is not None or self.user_post_pass is not None

    @cached_property
    def debug(self) -> DebugOptions:
        """The options of debug files."""
        return read(DebugOptions, self.options)

    @property
    def dumps(self) -> bool:
        """Whether the values of ops are written while the graph runs: in graph mode by the reference engine,
        in capture mode for every node.
        """
        asked = self.debug.enable_dump or (self.debug.dump_config_path is not None and not self.captures)
        return asked and not self.is_untouched

    @property
    def dumps_original(self) -> bool:
        """Whether capture mode runs and dumps AOTAutograd's graph, without running passes on it."""
        is_asked = self.captures and self.debug.enable_dump
        return is_asked and (self.debug.dump_stage == "original" or self.run_eagerly)

    @property
    def is_untouched(self) -> bool:
        """Whether AOTAutograd's graph runs op by op, without conversion, passes or code generation."""
        reports = self.debug.summary is not None and self.debug.skip_compile and not self.captures
        return reports or self.debug.data_dump is not None or self.dumps_original

    def without_dumps(self) -> Settings:
        """Return the settings without the dump of ops."""
        off = {"dump_config.enable_dump": False, "dump_config.dump_config_path": None}
        return replace(self, options={**self.options, **off})

    @property
    def session_scope(self) -> dict[str, str]:
        """The scope attributes of ops that are outside of all scopes."""
        if self.cores is None:
            return {}
        numbers = str(self.cores).split("|")
        if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
            raise BadOption(
                "ge_config.aicore_num must be the numbers of cube and vector cores, joined by '|'",
                got=repr(self.cores),
                near="for example '24|48'",
            )
        return dict(zip(core_limits.CORES, (number.strip() for number in numbers), strict=True))

    @property
    def checks_deadlocks(self) -> bool:
        """Whether deadlocks are checked, set by the flat name or by the older one under `debug`."""
        return self.deadlock_check or self.graph_deadlock_check

    @cached_property
    def named_passes(self) -> PassSwitches:
        """The flags of passes by name. Level O1 disables fusions that are not enabled by name."""
        return pass_switches(self.switch_text, self.switch_file, fusions=self.level != "O1")

    @cached_property
    def tuning(self) -> AutotuneConfig | None:
        """The autotuning configuration for graphs of fixed sizes; None without `aoe_mode`."""
        return None if self.tuning_mode is None else read_plan(self.tuning_folder, self.tuning_file)

    @property
    def order(self) -> str:
        """The topological sort of the IR's ops; empty to keep their order."""
        path = "experimental_config.topology_sorting_strategy"
        return self.sorting if path in self.assigned or self.sorting != default_of(path) else ""

    @property
    def statistics_when(self) -> str:
        """When the statistics of passes are written (`export_compile_stat`); never unless assigned."""
        return self.statistics if "ge_config.export_compile_stat" in self.assigned else NEVER

    def policy(
        self, *, backward: bool = False, inference: bool = True, sized_ops: int | None = None
    ) -> Policy:
        """Return the recording policy.

        Graph mode has one program for all sizes. It records a size after a few calls, if a graph with
        symbolic sizes has at least `static_model_ops_lower_limit` ops (`sized_ops` is their number). In
        training, recordings have their own memory pools, because a forward graph saves tensors for its
        backward graph.
        """
        is_direct = self.run_eagerly or self.is_untouched or self.dumps
        is_direct = is_direct or (not self.captures and self.codegen == "reference")
        asked, limit = read(Policy, self.options), self.static_ops
        if sized_ops is not None and limit is not None and not 0 <= limit <= sized_ops and not is_direct:
            why = f"it has symbolic sizes and {sized_ops} ops, and static_model_ops_lower_limit is {limit}"
            is_direct, asked = True, replace(asked, why_direct=why)
        if self.memory_efficiency and not is_direct:
            is_direct, asked = True, replace(asked, why_direct=KEEPS_MEMORY)
        return replace(
            asked,
            capture=not is_direct,
            counts=self.captures and not backward,
            patience=0 if self.captures else PATIENCE,
            clone_input=asked.clone_input and self.captures,
            reuse_pool=asked.reuse_pool and inference,
            eager=self.captures and is_direct,
        )

    def switches(self, kind: str, *, has_streams: bool = True, limits_cores: bool = True) -> dict[str, bool]:
        """Return the flags that enable passes: all boolean options, and flags that depend on `kind`.

        `kind` is the code generator. If ops run one by one, passes plan the memory; Inductor plans it itself,
        from a functional graph. Streams matter only on devices with several streams.
        """
        runs_op_by_op = kind == "eager"
        asked = {name: value for name, value in self.options.items() if isinstance(value, bool)}
        return {
            **asked,
            **{name: runs_op_by_op and asked[name] for name in IN_PLACE},
            "constant_folding": self.constant_folding is not False,
            "dead_code_elimination": self.dead_code_elimination is not False,
            "sorts_ops": self.order != "",
            "captures": self.captures,
            "runs_op_by_op": runs_op_by_op,
            "has_streams": has_streams,
            "runs_scopes": self.captures,
            "checks_races": self.captures and (has_streams or self.checks_deadlocks),
            "drops_streams": self.captures and not has_streams,
            "limits_cores": limits_cores,
            "runs_its_ops": self.captures and runs_op_by_op,
            "user_pre_pass": self.user_pre_pass is not None,
            "user_post_pass": self.user_post_pass is not None,
            "host_lists": self.captures,
        }


def resolve_settings(config: Config) -> Settings:
    """Resolve a config into settings.

    Options without effect in the chosen mode are reset to their defaults, with one warning each. Options that
    override others also cause a warning.
    """
    frozen, rows = freeze(config), dict(walk(type(tree_of(config))))
    degradations = Diagnostics(frozen["engine_config.strict"])
    for path, why in ineffective_options(config).items():
        text = no_effect(path, frozen[path], why)
        # The assignment has already warned that the option is not implemented.
        if why is HARDWARE or (why is NOBODY and not degradations.strict):
            logger.info("%s", text)
            continue
        degradations.add(text)
        frozen[path] = rows[path].default
    settled, texts = resolve(frozen)
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=3)
    settings = Settings.of(settled, config)
    _ = settings.tuning  # raises here for an invalid file, not during a compile
    if settings.frozen_parameter:
        warnings.warn(FROZEN, UserWarning, stacklevel=3)
    for text in (*names_without_pass(settings.named_passes), *without_switch(settings)):
        degradations.add(text)
    return settings


def ineffective_options(config: Config) -> dict[str, str]:
    """Return the options that are set but have no effect, with the reasons."""
    frozen = freeze(config)
    mode, found = frozen["mode"], dict[str, str]()
    for path, row in walk(type(tree_of(config))):
        if frozen[path] == row.default:
            continue
        if mode not in row.modes:
            found[path] = f"{mode} mode does not read it"
        elif row.hint or not row.acts:
            found[path] = HARDWARE if row.hint else NOBODY
    return found


def no_effect(path: str, value: Any, why: str) -> str:
    """Return the warning for an option without effect."""
    return f"option {path}={value!r} has no effect: {why}"


def names_without_pass(switches: PassSwitches) -> Iterator[str]:
    """Yield warnings for names that are not passes, or cannot be disabled. Log names of engine passes, which
    are passed on to the engine.
    """
    known = pass_names() if switches.named else {}
    for name, is_on in switches.named.items():
        if name in ENGINE_PASSES:
            logger.info("%s", no_effect(name, is_on, HARDWARE))
        elif name not in known:
            yield f"there is no pass named {name!r}; docs/reference/passes.md lists the passes by name"
        elif known[name] and not is_on:
            yield f"pass {name} cannot be disabled: later passes depend on it"


STATIC_KERNEL = "experimental_config.aclgraph._aclnn_static_shape_kernel"
SWITCHED = {
    ("aoe_config.aoe_mode",): ("aoe_config.work_path", "aoe_config.aoe_config_file"),
    ("debug.graph_dump.type",): ("debug.graph_dump.path",),
    ("debug.data_dump.type",): ("debug.data_dump.path", "debug.data_dump.filter"),
    ("debug.fx_summary.type",): ("debug.fx_summary.path", "debug.fx_summary.skip_compile"),
    ("dump_config.enable_dump", "dump_config.dump_config_path"): tuple(
        f"dump_config.{name}"
        for name in ("dump_path", "dump_mode", "quant_dumpable", "dump_step", "dump_layer", "dump_data")
    ),
    ("experimental_config.aot_config_enable_joint_graph",): (
        "experimental_config.aot_config_output_loss_index",
    ),
    (STATIC_KERNEL,): tuple(
        f"{STATIC_KERNEL}_{name}" for name in ("build_dir", "sym_value_range", "sym_index")
    ),
}
"""Options that have an effect only if an option of the key is set."""


def without_switch(settings: Settings) -> Iterator[str]:
    """Yield warnings for options that have no effect because the option that enables them is not set."""

    def is_set(path: str) -> bool:
        return settings.options[path] != default_of(path)

    for switches, paths in SWITCHED.items():
        if not any(map(is_set, switches)):
            for path in filter(is_set, paths):
                yield no_effect(path, settings.options[path], f"{' or '.join(switches)} is not set")


KEEPS_MEMORY = "memory_efficiency is set, but a recording holds its memory between calls"
NOBODY = "this version does not implement it"
HARDWARE = "it applies only to Ascend hardware"
NEVER = "0"
FROZEN = (
    "frozen_parameter: the addresses of parameters are read once and not checked again. Update parameters in "
    "place; if one is moved (p.data = other, module.to(...)), the graph reads its old memory. If several "
    "modules share a recorded graph, it reads the parameters of the first module for all of them"
)


def checked(config: Any) -> Config:
    """Return the config; raise `BadOptionType` if it is not a config."""
    if isinstance(config, Config):
        return config
    raise BadOptionType(
        "compiler_config must be a CompilerConfig",
        got=shown(config),
        next="create one with torchair.CompilerConfig() and assign its options; "
        "torch.compile(options={...}) accepts flat names",
    )


def shown(value: Any) -> str:
    """Format an invalid value and its type for an error."""
    return f"{value!r} ({type(value).__name__})"
