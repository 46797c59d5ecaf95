"""The ways in: backend objects and names for `torch.compile`, and compilers for those who run AOTAutograd
themselves.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import fx

from torchair.backend.dynamo.graph_breaks import break_graphs
from torchair.backend.dynamo.graph_cache import compile_or_get_cached
from torchair.backend.dynamo.log_graph import log_graph
from torchair.backend.pipeline.compile import compile_fx as compile_graph
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.runtime.compiled_graph import CompiledGraph
from torchair.backend.runtime.input_check import InputChecker
from torchair.backend.settings.settings import (
    checked,
    ineffective_options,
    no_effect,
    resolve_settings,
    shown,
)
from torchair.configs import npugraph_ex as flat
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import cell
from torchair.configs.resolve import Config, deprecations, mode_warnings, with_mode, with_options
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOptionType
from torchair.core.gc_control import older_left_alone
from torchair.core.log import logger
from torchair.core.torch_private.compilers.aot_autograd import backend_names, register_backend
from torchair.core.torch_private.operators.schemas import OpOverload, OpOverloadPacket
from torchair.debug.observer.debug_dir import open_compile
from torchair.ops.distributed.distributed_calls import trace_collectives

Decompositions = Mapping[Any, Callable[..., Any]]
Door = TypeVar("Door", bound=Callable[..., Any])
# Switches that act before AOTAutograd has made a functional graph.
OF_DYNAMO = ("experimental_config.aot_config_enable_joint_graph", "experimental_config.npu_fx_pass")


def keyword_only(door: Door) -> Door:
    """A function that takes its arguments by name alone, and says so where one comes without."""

    @functools.wraps(door)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise BadOptionType(
                f"{door.__name__} takes its arguments by name",
                got=shown(args[0]),
                next=f"{door.__name__}(compiler_config=config)",
            )
        return door(**kwargs)

    return cast(Door, call)


@keyword_only
def get_npu_backend(
    *,
    compiler_config: Config | None = None,
    custom_decompositions: Decompositions = {},  # noqa: B006 - read, never written
) -> functools.partial[Any]:
    """A backend for `torch.compile`, with this configuration.

    `custom_decompositions` maps ops to functions that take them apart before conversion.
    """
    break_graphs()
    trace_collectives()
    config = checked(CompilerConfig() if compiler_config is None else compiler_config)
    _warn(config)
    decompositions = _by_overload({} if custom_decompositions is None else custom_decompositions)
    return _registered(functools.partial(_backend, compiler_config=config, decompositions=decompositions))


def make_backend(config: Config, custom_decompositions: Decompositions) -> functools.partial[Any]:
    """The backend of `get_npu_backend`, for a config whose warnings were told."""
    decompositions = _by_overload(custom_decompositions)
    return _registered(functools.partial(_backend, compiler_config=config, decompositions=decompositions))


def _registered(backend: functools.partial[Any]) -> functools.partial[Any]:
    """Mark the backend as one that has a name: after a compile of such a backend Dynamo clears its weak
    references to parameters, with which `torch.utils.swap_tensors` would refuse these.
    """
    backend.compiler_name = backend.__name__ = "npu"  # type: ignore[attr-defined]
    return backend


def _by_overload(given: Any) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions by overload; one of a packet is for each of its overloads that has none of its own."""
    if not isinstance(given, Mapping):
        raise BadOptionType("custom_decompositions must map op overloads to functions", got=shown(given))
    found: dict[OpOverload, Callable[..., Any]] = {}
    for op, function in given.items():
        if not isinstance(op, OpOverload | OpOverloadPacket):
            raise BadOptionType(
                "a key of custom_decompositions is no op",
                got=shown(op),
                next="torch.ops.aten.gelu.default, say",
            )
        if not callable(function):
            raise BadOptionType(f"the decomposition of {op} is no function", got=shown(function))
        overloads = [op] if isinstance(op, OpOverload) else [getattr(op, name) for name in op.overloads()]
        found |= {overload: given.get(overload, function) for overload in overloads}
    return found


def _warn(config: Config) -> None:
    text, told = mode_warnings(config)
    if text is not None:
        warnings.warn(text, UserWarning, stacklevel=4)
    for path, why in ineffective_options(config).items():
        if path in told:
            # So the compilation need not say it again.
            logger.is_new(no_effect(path, cell(config, path).raw, why))
    for text in deprecations(config):
        warnings.warn(text, DeprecationWarning, stacklevel=4)


def _backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler_config: Config,
    decompositions: Decompositions,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls. `options=` and `mode=` of one `torch.compile` stay in that compilation."""
    settings = resolve_settings(with_mode(with_options(compiler_config, options), mode))
    with older_left_alone():
        return compile_or_get_cached(gm, example_inputs, settings, decompositions)


def npu(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """`torch.compile(backend="npu")`: graph mode with default options."""
    return _backend(gm, example_inputs, compiler_config=CompilerConfig(), decompositions={}, **kwargs)


def npugraph_ex(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """`torch.compile(backend="npugraph_ex")`: capture mode; `options=` are the flat option names."""
    return _backend(gm, example_inputs, compiler_config=flat.CompilerConfig(), decompositions={}, **kwargs)


def get_compiler(compiler_config: Config | None = None) -> Compiler:
    """A compiler `f(gm, example_inputs)` for a graph that is already functional ATen, as AOTAutograd hands
    it over.
    """
    return Compiler(checked(CompilerConfig() if compiler_config is None else compiler_config))


class Compiler:
    """Compiles functional ATen graphs with one configuration; no AOTAutograd, no decompositions."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        settings = resolve_settings(self.config)
        for path in OF_DYNAMO:
            if settings.options[path]:
                why = "a graph that is given is compiled as it is; torch.compile reads it"
                Diagnostics(settings.strict).add(no_effect(path, True, why))
        log_graph(gm, example_inputs, settings, "functional")
        files = open_compile(captures=settings.captures)
        with torch.profiler.record_function("npu_fx_compiler inference"):
            runner = compile_graph(gm, example_inputs, settings, CompileFxArgs(debug_files=files))
        return CompiledGraph(runner, InputChecker(gm, example_inputs))


def compile_fx(
    gm: fx.GraphModule, example_inputs: Sequence[Any] | None = None, options: Mapping[str, Any] | None = None
) -> CompiledGraph:
    """Capture mode for a graph that is already functional ATen; `options` are the flat option names."""
    inputs = example_inputs
    if inputs is None:
        inputs = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    return Compiler(with_options(flat.CompilerConfig(), options))(gm, inputs)


def register_names() -> None:
    """The names for `torch.compile(backend=...)`, where no installed package offers them."""
    offered = backend_names()
    for name, door in {"npu": npu, "npugraph_ex": npugraph_ex}.items():
        owner = offered.get(name, "")
        if name not in offered:
            register_backend(door, name=name)
        elif not owner.startswith("torchair."):
            logger.warning("backend %r belongs to %s; torchair.get_npu_backend() is ours", name, owner)
