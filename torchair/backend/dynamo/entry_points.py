"""Entry points: backends for `torch.compile`, and compilers for callers that run AOTAutograd themselves."""

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
EntryPoint = TypeVar("EntryPoint", bound=Callable[..., Any])
# Options that act before AOTAutograd creates a functional graph.
DYNAMO_ONLY_OPTIONS = ("experimental_config.aot_config_enable_joint_graph", "experimental_config.npu_fx_pass")


def keyword_only(function: EntryPoint) -> EntryPoint:
    """Make a function raise `BadOptionType`, with the correct call, for positional arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise BadOptionType(
                f"{function.__name__}() accepts only keyword arguments",
                got=shown(args[0]),
                next=f"{function.__name__}(compiler_config=config)",
            )
        return function(**kwargs)

    return cast(EntryPoint, call)


@keyword_only
def get_npu_backend(
    *,
    compiler_config: Config | None = None,
    custom_decompositions: Decompositions = {},  # noqa: B006 - read, never written
) -> functools.partial[Any]:
    """Create a backend for `torch.compile`.

    Args:
        compiler_config: The options; None for the defaults of graph mode.
        custom_decompositions: Functions that decompose ops before conversion, by op overload or packet.

    Returns:
        The backend, for `torch.compile(backend=...)`.

    Raises:
        BadOptionType: An argument has the wrong type or is not passed by keyword.

    Example:
        >>> config = torchair.CompilerConfig()
        >>> config.mode = "reduce-overhead"
        >>> fast = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
    """
    break_graphs()
    trace_collectives()
    config = checked(CompilerConfig() if compiler_config is None else compiler_config)
    _warn(config)
    decompositions = _by_overload({} if custom_decompositions is None else custom_decompositions)
    return _registered(functools.partial(_backend, compiler_config=config, decompositions=decompositions))


def make_backend(config: Config, custom_decompositions: Decompositions) -> functools.partial[Any]:
    """Create the backend of `get_npu_backend` without the warnings for its config."""
    decompositions = _by_overload(custom_decompositions)
    return _registered(functools.partial(_backend, compiler_config=config, decompositions=decompositions))


def _registered(backend: functools.partial[Any]) -> functools.partial[Any]:
    """Give the backend a name. After a compile with a named backend, Dynamo clears its weak references to
    parameters, because of which `torch.utils.swap_tensors` would raise.
    """
    backend.compiler_name = backend.__name__ = "npu"  # type: ignore[attr-defined]
    return backend


def _by_overload(given: Any) -> dict[OpOverload, Callable[..., Any]]:
    """Return the decompositions by overload. A packet's function is used for its overloads without one."""
    if not isinstance(given, Mapping):
        raise BadOptionType(
            "custom_decompositions must map op overloads to functions",
            got=shown(given),
            next="custom_decompositions={torch.ops.aten.gelu.default: function}",
        )
    found: dict[OpOverload, Callable[..., Any]] = {}
    for op, function in given.items():
        if not isinstance(op, OpOverload | OpOverloadPacket):
            raise BadOptionType(
                "a key of custom_decompositions is not an op",
                got=shown(op),
                next="use an overload, for example torch.ops.aten.gelu.default",
            )
        if not callable(function):
            raise BadOptionType(
                f"the decomposition of {op} is not callable",
                got=shown(function),
                next="pass a function with the arguments of the op",
            )
        overloads = [op] if isinstance(op, OpOverload) else [getattr(op, name) for name in op.overloads()]
        found |= {overload: given.get(overload, function) for overload in overloads}
    return found


def _warn(config: Config) -> None:
    text, warned = mode_warnings(config)
    if text is not None:
        warnings.warn(text, UserWarning, stacklevel=4)
    for path, why in ineffective_options(config).items():
        if path in warned:
            # Mark the warning as shown, so that the compilation does not repeat it.
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
    """Compile a graph for Dynamo. `options=` and `mode=` of a `torch.compile` apply to that compilation."""
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
    """Return a compiler for functional ATen graphs, as AOTAutograd creates them.

    Args:
        compiler_config: The options; None for the defaults of graph mode.

    Returns:
        A function `compiler(gm, example_inputs)` that returns a callable `CompiledGraph`.

    Raises:
        BadOptionType: `compiler_config` is not a config.
    """
    return Compiler(checked(CompilerConfig() if compiler_config is None else compiler_config))


class Compiler:
    """Compile functional ATen graphs with one configuration, without AOTAutograd or decompositions."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        settings = resolve_settings(self.config)
        for path in DYNAMO_ONLY_OPTIONS:
            if settings.options[path]:
                why = "only torch.compile uses it; get_compiler() and compile_fx() compile a graph unchanged"
                Diagnostics(settings.strict).add(no_effect(path, True, why))
        log_graph(gm, example_inputs, settings, "functional")
        files = open_compile(captures=settings.captures)
        with torch.profiler.record_function("npu_fx_compiler inference"):
            runner = compile_graph(gm, example_inputs, settings, CompileFxArgs(debug_files=files))
        return CompiledGraph(runner, InputChecker(gm, example_inputs))


def compile_fx(
    gm: fx.GraphModule, example_inputs: Sequence[Any] | None = None, options: Mapping[str, Any] | None = None
) -> CompiledGraph:
    """Compile a functional ATen graph in capture mode.

    Args:
        gm: The graph, as AOTAutograd creates it.
        example_inputs: Flat inputs, real or fake; None to use the fake values in the graph's metadata.
        options: Options by their flat names.

    Returns:
        The compiled graph: call it with the flat inputs, and it returns the list of outputs.
    """
    inputs = example_inputs
    if inputs is None:
        inputs = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    return Compiler(with_options(flat.CompilerConfig(), options))(gm, inputs)


def register_names() -> None:
    """Register the names for `torch.compile(backend=...)` that no installed package provides."""
    offered = backend_names()
    for name, backend in {"npu": npu, "npugraph_ex": npugraph_ex}.items():
        owner = offered.get(name, "")
        if name not in offered:
            register_backend(backend, name=name)
        elif not owner.startswith("torchair."):
            logger.warning(
                "backend name %r is registered by %s; use torchair.get_npu_backend() for torchair's backend",
                name,
                owner,
            )
