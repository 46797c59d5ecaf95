"""Cache compiled Dynamo graphs on disk, so that a later process skips AOTAutograd, conversion and codegen.

A graph is cached if it has no gradients, consists of torch's own functions and plain values, and compiled
without a degradation or a debugging option. It is written when its optimized program is ready.

The key is everything a compile reads: the graph, the facts of its inputs, the options, the state of torch.
Assumptions of the compile about sizes are stored as conditions, which become guards again.
"""

from __future__ import annotations

import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.nn import Parameter

from torchair.backend.dynamo.aot import Decompositions, compile_dynamo
from torchair.backend.runtime.artifact import CompiledArtifact
from torchair.backend.runtime.runtime_wrapper import RuntimeWrapper
from torchair.backend.service.program_cache import ProgramCacheEntry, digest_of, process_facts
from torchair.backend.service.request import symbols_of, tensor_metadata_of
from torchair.backend.service.torch_state import TorchState
from torchair.backend.settings.settings import NEVER, Settings
from torchair.backend.specialize.size_buckets import has_gears
from torchair.codegen.base.graph_prep import is_custom
from torchair.configs.resolve import cache_key_paths
from torchair.core.diagnostics import Diagnostics, is_strict
from torchair.core.errors import AirError, NotPossible, first_line
from torchair.core.fingerprint.machine import device_facts
from torchair.core.fingerprint.python_objects import BY_TEXT, PLAIN
from torchair.core.log import logger
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.core.source_location import graph_location
from torchair.core.torch_private.compilers.aot_autograd import FixedNumbers, argument_names
from torchair.core.torch_private.dynamo.config import options_with_code, torch_options
from torchair.core.torch_private.dynamo.trace_state import replaced_ops, trace_state
from torchair.core.torch_private.fake.fake_tensors import FakeTensor
from torchair.core.torch_private.fake.symbol_table import Environment
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.debug.dumps.options import DebugOptions
from torchair.debug.observer.debug_dir import is_debugging
from torchair.devices import get_device

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
TENSORS = (torch.Tensor, Parameter, FakeTensor)
MODULES = ("torch", "math", "operator", "_operator", "builtins")
"""Modules with built-in functions that are the same in every process with the same torch."""
HOST = torch.device("cpu")
_TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class CachedGraph:
    """A cached graph: the serialized runner, its runtime wrapper, and conditions on sizes."""

    artefact: CompiledArtifact
    wrapper: RuntimeWrapper
    conditions: tuple[Any, ...]

    def call(self, begins_at: str) -> Callable[..., Any]:
        """Return the function that Dynamo calls; `begins_at` is the user's line where the graph begins."""
        self.artefact.degradations.begins_at(begins_at)
        wrapper = replace(self.wrapper, runner=self.artefact.runner())
        run = wrapper.call()
        run.kept = wrapper  # type: ignore[attr-defined]
        return run


@dataclass(frozen=True)
class RetraceMarker:
    """The entry of a graph that Dynamo traced again, specialized on the values of these numbers."""

    numbers: tuple[str, ...]


def compile_or_get_cached(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, decompositions: Decompositions
) -> Callable[..., Any]:
    """Load a compiled graph from the cache; on a miss, call `compile_dynamo` and cache its result."""
    is_graph = isinstance(gm, fx.GraphModule)  # any module can be compiled with real inputs
    if not is_graph or decompositions or has_gears(inputs) or not _is_cacheable(settings):
        return compile_dynamo(gm, inputs, settings, decompositions)
    known_sizes = Environment.of(_symbolic(gm, inputs))
    try:
        facts = facts_of(gm, inputs, known_sizes, settings)
    except NotPossible as error:
        logger.debug("the compiled graph cannot be cached: %s", error)
        return compile_dynamo(gm, inputs, settings, decompositions)
    entry = ProgramCacheEntry.of(facts, settings.program_cache_mb << 20)
    # Assumptions of an entry that cannot be loaded also hold for the compile that replaces it.
    conditions = known_sizes.taken_for_granted()
    cached = None if entry is None else _load(entry, known_sizes, gm)
    if cached is not None:
        return cached
    degraded = Diagnostics.count
    try:
        compiled = compile_dynamo(gm, inputs, settings, decompositions)
    except FixedNumbers.Asked:
        if entry is not None:
            entry.put(RetraceMarker(FixedNumbers.now()))
        raise
    wrapper: RuntimeWrapper | None = getattr(compiled, "kept", None)
    if entry is not None and wrapper is not None and Diagnostics.count == degraded:
        _store(entry, wrapper, conditions())
    return compiled


def _is_cacheable(settings: Settings) -> bool:
    """Whether no option observes or takes part in the compile."""
    unusual = (
        not settings.program_cache_mb,
        settings.waits,
        settings.has_user_passes,
        settings.is_untouched,
        settings.run_eagerly,
        settings.tuning is not None,
        settings.static_kernels,
        settings.checks_deadlocks,
        settings.statistics_when != NEVER,
        settings.joint_graph,
        settings.verify,
        settings.options["aclgraph_config.use_custom_pool"] is not None,
        settings.options["capture.record_statistics_debug_info"],
        settings.debug != DebugOptions(),
        is_debugging(),
        bool(EXTENSIONS),
    )
    return not any(unusual)


def _load(
    entry: ProgramCacheEntry, known_sizes: Environment, gm: fx.GraphModule
) -> Callable[..., Any] | None:
    cached = entry.get()
    if isinstance(cached, RetraceMarker):
        FixedNumbers.ask(cached.numbers)
    if not isinstance(cached, CachedGraph) or not known_sizes.take(cached.conditions):
        return None
    try:
        call = cached.call(graph_location(gm))
    except Exception as error:
        degradations = Diagnostics(of=graph_location(gm))
        degradations.add(f"a cached graph cannot be loaded and is compiled again: {first_line(error)}")
        return None
    logger.event("%s: loaded from the program cache", cached.artefact.name)
    return call


def _store(entry: ProgramCacheEntry, wrapper: RuntimeWrapper, conditions: tuple[Any, ...]) -> None:
    """Cache the graph when its optimized program is ready. If that failed, later processes try again."""
    runner, awaited = wrapper.runner, wrapper.runner.awaited

    def store() -> None:
        if runner.strategy.compiled.degradations.texts or (awaited is not None and awaited.peek() is None):
            return
        try:
            artifact = CompiledArtifact.of(runner)
            entry.put(CachedGraph(artifact, replace(wrapper, runner=None), conditions))  # type: ignore[arg-type]
        except AirError as error:
            logger.debug("%s cannot be cached: %s", runner.strategy.name, error)

    if awaited is None:
        store()
    else:
        awaited.then(store)


def facts_of(
    gm: fx.GraphModule, inputs: Sequence[Any], known_sizes: Environment, settings: Settings
) -> dict[str, str]:
    """Return everything a compile reads, as text; raise `NotPossible` if a part has no stable text."""
    if others := [*options_with_code(), *replaced_ops()]:
        raise NotPossible(f"a part of torch is user-defined: {others[0]}")
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        raise NotPossible("the graph computes gradients")
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    plain = [type(value) in TENSORS and value.layout is torch.strided for value in tensors]
    if not all(plain):
        kind = type(tensors[plain.index(False)]).__name__
        raise NotPossible(f"an input is a tensor subclass or has a special layout: {kind}")
    symbolic = _symbolic(gm, inputs)
    if not known_sizes.has_examples(symbols_of(symbolic)):
        raise NotPossible("the graph has a data-dependent size")
    keyed = sorted(cache_key_paths() & set(settings.options))
    return {
        "dynamo graph": digest_of(_lines(gm)),
        "inputs": digest_of(map(repr, tensor_metadata_of(symbolic))),
        "names": digest_of(argument_names(gm)),
        "roles": digest_of(map(_role, gm.graph.find_nodes(op="placeholder"), inputs)),
        "memory": str(_storage_ids(inputs, symbolic)),
        "sizes": digest_of(known_sizes.lines()),
        "settings": _text({path: settings.options[path] for path in keyed}),
        "assigned": ", ".join(sorted(settings.assigned & set(keyed))),
        "better programs": str(settings.compile_budget != 0),
        "passes": str(settings.named_passes),
        "strict": str(settings.strict or is_strict()),
        "state": str((TorchState.now(), trace_state())),
        "torch options": torch_options(),
        "devices": ", ".join(sorted({_device(tensor.device) for tensor in tensors} | {_device(HOST)})),
        **process_facts(),
    }


def _device(device: torch.device) -> str:
    """Return the facts of a device, and the class that implements it, which other packages can replace."""
    found = get_device(device)
    kind = type(found)
    return f"{device_facts(device)} {kind.__module__}.{kind.__qualname__} {found.why_no_graphs()}"


def _symbolic(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Return Dynamo's fake inputs, which have symbolic sizes; the inputs that it passes are real."""
    nodes = gm.graph.find_nodes(op="placeholder")
    return [node.meta.get("example_value", value) for node, value in zip(nodes, inputs, strict=True)]


def _lines(gm: fx.GraphModule) -> Iterator[str]:
    for node in gm.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            raise NotPossible(f"the graph holds {node.target} as an attribute")
        target = node.target if isinstance(node.target, str) else _function(node.target)
        yield f"{node.op} {node.name} {target} {_text(node.args)} {_text(node.kwargs)}"


def _function(target: Any) -> str:
    if isinstance(target, OpOverload):
        if is_custom(target):
            raise NotPossible(f"{target} is user-defined")
        return str(target)
    module = str(getattr(target, "__module__", None) or "")
    if not isinstance(target, FUNCTIONS) or not _is_of_torch(target, module):
        raise NotPossible(f"{target} is not a function of torch")
    return f"{module}.{target.__qualname__} {target.__name__}"


def _is_of_torch(target: Any, module: str) -> bool:
    """Whether torch defines the function. The module name alone does not prove that: `functools.wraps` copies
    it, and a wrapper can hold values of its own.
    """
    if isinstance(target, types.FunctionType):
        is_found = getattr(sys.modules.get(module), target.__name__, None) is target
        return is_found and target.__code__.co_filename.startswith(_TORCH)
    return module.partition(".")[0] in MODULES or getattr(torch, target.__name__, None) is target


def _text(value: Any) -> str:
    """Return the text of a value, with its type: True is not 1."""
    match value:
        case fx.Node():
            return f"%{value.name}"
        case tuple() | list():
            return f"{type(value).__name__}({', '.join(map(_text, value))})"
        case dict():
            return f"dict({', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())})"
        case slice():
            return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
        case _ if isinstance(value, (*PLAIN, *BY_TEXT)):
            return f"{type(value).__name__} {value!r}"
        case _:
            raise NotPossible(f"a value of type {type(value).__name__} cannot be serialized")


def _role(node: fx.Node, value: Any) -> str:
    """Return the facts of an input other than its metadata, as whether it is a parameter."""
    known = node.meta.get("tensor_dict") or {}
    marks = {name: known[name] for name in known if name.startswith("_dynamo_")}
    is_parameter = isinstance(value, Parameter) or "_parameters[" in str(getattr(node, "_dynamo_source", ""))
    tensor = isinstance(value, torch.Tensor) and (
        value.requires_grad,
        value.is_inference(),
        value.is_conj(),
        value.is_neg(),
    )
    return f"{is_parameter} {tensor} {sorted(marks.items())}"


def _storage_ids(inputs: Sequence[Any], symbolic: Sequence[Any]) -> list[int]:
    """Return, for each tensor, the index of the first tensor with the same storage.

    If sizes of such tensors are symbolic, AOTAutograd guards on their overlap. Its guards are not cached.
    """
    pairs = [pair for pair in zip(inputs, symbolic, strict=True) if isinstance(pair[0], torch.Tensor)]
    ids = [tensor.untyped_storage()._cdata for tensor, _ in pairs]
    uses, first = Counter(ids), {each: index for index, each in reversed(list(enumerate(ids)))}
    if symbols_of([known for (_, known), each in zip(pairs, ids, strict=True) if uses[each] > 1]):
        raise NotPossible("inputs with symbolic sizes share memory")
    return [first[each] for each in ids]
