"""The option tree frozen into plain typed values. Nothing behind the door reads an option object."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torchair.capture import Policy
from torchair.configs.compiler_config import OptionTree
from torchair.configs.freeze import Config, freeze
from torchair.configs.interactions import resolve
from torchair.configs.option import walk
from torchair.core.errors import BadOptionType, Degraded
from torchair.core.log import logger

CAPTURE_MODES = ("npugraph_ex", "reduce-overhead")
PATIENCE = 3  # calls of one size in graph mode before it is recorded

# Setting -> option path: all options that act here.
PATHS = {
    "mode": "mode",
    "user_pre_pass": "post_grad_custom_pre_pass",
    "user_post_pass": "post_grad_custom_post_pass",
    "run_eagerly": "debug.run_eagerly",
    "remove_noop_ops": "experimental_config.remove_noop_ops",
    "pattern_fusion_pass": "experimental_config.pattern_fusion_pass",
    "fold_views": "experimental_config.enable_view_optimize",
    "keep_mutations": "experimental_config.keep_inference_input_mutations",
    "frozen_parameter": "experimental_config.frozen_parameter",
    "remove_cat_ops": "debug.aclgraph.remove_cat_ops",
    "no_inplace": "debug.aclgraph.disable_reinplace_inplaceable_ops_pass",
    "no_input_inplace": "debug.aclgraph.disable_reinplace_input_mutated_ops_pass",
    "capture_limit": "debug.aclgraph.static_capture_size_limit",
    "clone_input": "debug.aclgraph.clone_input",
    "clone_output": "debug.aclgraph.enable_output_clone",
    "separate_pools": "debug.aclgraph.disable_mempool_reuse_in_same_fx",
    "pool": "aclgraph_config.use_custom_pool",
    "force_recapture": "capture.force_recapture",
    "error_mode": "capture.capture_error_mode",
    "deadlock_check": "capture.deadlock_check",
    "graph_deadlock_check": "debug.deadlock_check",
    "statistics": "capture.record_statistics_debug_info",
    "skip_validation": "capture.unsafe_skip_npugraph_capture_validation",
    "dumps": "dump_config.enable_dump",
    "dump_stage": "dump_config.data_dump_stage",
    "dump_folder": "dump_config.dump_path",
    "static_kernels": "experimental_config.aclgraph._aclnn_static_shape_kernel",
    "static_kernel_symbol": "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index",
    "static_kernel_values": "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range",
    "static_kernels_uncached": "capture.disable_static_kernel_compile_cache",
    "codegen": "engine_config.codegen",
    "memory_budget": "engine_config.memory_budget",
    "verify": "engine_config.verify",
    "strict": "engine_config.strict",
}


@dataclass(frozen=True)
class Settings:
    """What one compilation was asked for."""

    mode: str = "max-autotune"
    user_pre_pass: Callable[..., Any] | None = None
    user_post_pass: Callable[..., Any] | None = None
    run_eagerly: bool = False
    remove_noop_ops: bool = True
    pattern_fusion_pass: bool = True
    fold_views: bool = True
    keep_mutations: bool = True
    frozen_parameter: bool = False
    remove_cat_ops: bool = True
    no_inplace: bool = False
    no_input_inplace: bool = False
    capture_limit: int = 64
    clone_input: bool = True
    clone_output: bool = False
    separate_pools: bool = False
    pool: Any = None
    force_recapture: bool = False
    error_mode: str = "global"
    deadlock_check: bool = False
    graph_deadlock_check: bool = False
    statistics: bool = False
    skip_validation: bool = False
    dumps: bool = False
    dump_stage: str = "optimized"
    dump_folder: str = "./"
    static_kernels: bool = False
    static_kernel_symbol: int = 0
    static_kernel_values: list[int] | None = None
    static_kernels_uncached: bool = False
    codegen: str = "auto"
    memory_budget: int | None = None
    verify: bool = False
    strict: bool = False
    # The option tree itself, only to be handed to the user's passes.
    config: Any = None

    @property
    def captures(self) -> bool:
        """Capture mode: record and replay instead of going through the IR."""
        return self.mode in CAPTURE_MODES

    @property
    def has_user_passes(self) -> bool:
        """The user's own passes may change what the graph returns."""
        return self.user_pre_pass is not None or self.user_post_pass is not None

    @property
    def dumps_original(self) -> bool:
        """The graph as AOTAutograd left it is run and written, not what passes made of it."""
        return self.dumps and (self.dump_stage == "original" or self.run_eagerly)

    @property
    def checks_deadlocks(self) -> bool:
        """By either name: the flat one, or the older one under `debug`."""
        return self.deadlock_check or self.graph_deadlock_check

    def policy(self, *, backward: bool = False, inference: bool = True) -> Policy:
        """How recordings are made. Graph mode has one program for all sizes: a size is recorded when it has
        come a few times. What a forward graph keeps for its backward graph stays where it was made: in
        training, recordings have pools of their own.
        """
        is_direct = self.run_eagerly or (self.dumps if self.captures else self.codegen == "reference")
        return Policy(
            capture=not is_direct,
            counts=self.captures and not backward,
            patience=0 if self.captures else PATIENCE,
            capture_limit=self.capture_limit,
            clone_input=self.clone_input and self.captures,
            clone_output=self.clone_output,
            frozen_parameter=self.frozen_parameter,
            force_recapture=self.force_recapture,
            pool=self.pool,
            reuse_pool=not self.separate_pools and inference,
            error_mode=self.error_mode,
            memory_budget=self.memory_budget,
            skip_validation=self.skip_validation,
            eager=self.captures and is_direct,
            statistics=self.statistics,
        )

    def switches(self, kind: str) -> dict[str, bool]:
        """What the lists of passes ask for; `kind` is the code generator. Where ops run as they stand in the
        graph, passes decide about memory and streams; Inductor does so by itself, from a functional graph.
        """
        runs_op_by_op = kind == "eager"
        return {
            "captures": self.captures,
            "runs_op_by_op": runs_op_by_op,
            "runs_its_ops": self.captures and runs_op_by_op,
            "user_pre_pass": self.user_pre_pass is not None,
            "user_post_pass": self.user_post_pass is not None,
            "host_lists": self.captures and not self.dumps_original,
            "remove_noop_ops": self.remove_noop_ops,
            "pattern_fusion_pass": self.pattern_fusion_pass,
            "remove_cat_ops": runs_op_by_op and self.remove_cat_ops,
            "inplace_pass": runs_op_by_op and not self.no_inplace,
            "input_inplace_pass": runs_op_by_op and not self.no_input_inplace,
        }


def settle(config: Config) -> Settings:
    """Freeze a config; options that overrule others or have no effect here are said once."""
    frozen, texts = resolve(freeze(config))
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=3)
    for path, why in idle_options(config).items():
        if why is NOBODY and frozen["engine_config.strict"]:
            raise Degraded(f"option {path}={frozen[path]!r} has no effect: {why}")
        logger.info("option %s=%r has no effect: %s", path, frozen[path], why)
    values = {name: frozen[path] for name, path in PATHS.items()}
    assert set(values) == {field.name for field in fields(Settings)} - {"config"}, "every setting has a path"
    return Settings(**values, config=config)


def idle_options(config: Config) -> dict[str, str]:
    """What was set and does nothing here, and why."""
    frozen = freeze(config)
    rows = {path: row for path, row in walk(OptionTree) if frozen[path] != row.default}
    hints = {path: "it addresses Ascend hardware" for path, row in rows.items() if row.hint}
    return hints | {path: NOBODY for path, row in rows.items() if not row.acts}


NOBODY = "nothing in this version acts on it"


def checked(config: Any) -> Config:
    """The config, if it is one."""
    if isinstance(config, Config):
        return config
    raise BadOptionType(
        "compiler_config must be a CompilerConfig",
        got=shown(config),
        next="config = torchair.CompilerConfig(), then assign its options; "
        "torch.compile(options={...}) takes flat names",
    )


def shown(value: Any) -> str:
    """A wrong value and its type, for an error."""
    return f"{value!r} ({type(value).__name__})"
