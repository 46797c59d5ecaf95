"""A graph of Dynamo's that an earlier process has compiled: AOTAutograd, conversion and code are taken from
disk.

Kept are graphs without gradients that consist of torch's own functions and plain values, once their best
program is there, if nothing about them was less than promised and nobody asked to see them compiled. The key
is all that a compile looks at: the graph, what is known of its inputs, the options, and the state of torch.
What a compile took for granted about sizes is kept as conditions, which become guards again.
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
from torchair.backend.runtime.runtime_wrapper import RuntimeWrapper as Layers
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
"""Whose built-in functions are the same in every process with the same torch."""
HOST = torch.device("cpu")
_TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class CachedGraph:
    """What is kept of a graph: a runner as data, the work around its calls, and conditions on sizes."""

    artefact: CompiledArtifact
    layers: Layers
    conditions: tuple[Any, ...]

    def call(self, begins_at: str) -> Callable[..., Any]:
        """As Dynamo calls it; the graph begins with this line of the user's."""
        self.artefact.degradations.begins_at(begins_at)
        layers = replace(self.layers, runner=self.artefact.runner())
        run = layers.call()
        run.kept = layers  # type: ignore[attr-defined]
        return run


@dataclass(frozen=True)
class RetraceMarker:
    """A graph that was not compiled: Dynamo had to trace it again, with the values of these numbers."""

    numbers: tuple[str, ...]


def compile_or_get_cached(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, decompositions: Decompositions
) -> Callable[..., Any]:
    """What `compile_dynamo` makes of a graph, or made in an earlier process."""
    is_graph = isinstance(gm, fx.GraphModule)  # any module can be compiled with real inputs
    if not is_graph or decompositions or has_gears(inputs) or not _is_usual(settings):
        return compile_dynamo(gm, inputs, settings, decompositions)
    known_sizes = Environment.of(_symbolic(gm, inputs))
    try:
        facts = facts_of(gm, inputs, known_sizes, settings)
    except NotPossible as error:
        logger.debug("what is compiled after Dynamo is not kept: %s", error)
        return compile_dynamo(gm, inputs, settings, decompositions)
    kept = ProgramCacheEntry.of(facts, settings.program_cache_mb << 20)
    # What is taken for granted for one that cannot be loaded holds for the next, too.
    conditions = known_sizes.taken_for_granted()
    found = None if kept is None else _taken(kept, known_sizes, gm)
    if found is not None:
        return found
    degraded = Diagnostics.count
    try:
        compiled = compile_dynamo(gm, inputs, settings, decompositions)
    except FixedNumbers.Asked:
        if kept is not None:
            kept.put(RetraceMarker(FixedNumbers.now()))
        raise
    layers: Layers | None = getattr(compiled, "kept", None)
    if kept is not None and layers is not None and Diagnostics.count == degraded:
        _keep(kept, layers, conditions())
    return compiled


def _is_usual(settings: Settings) -> bool:
    """Does nobody want to see how graphs are compiled, or take a part in it?"""
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


def _taken(
    kept: ProgramCacheEntry, known_sizes: Environment, gm: fx.GraphModule
) -> Callable[..., Any] | None:
    warm = kept.get()
    if isinstance(warm, RetraceMarker):
        FixedNumbers.ask(warm.numbers)
    if not isinstance(warm, CachedGraph) or not known_sizes.take(warm.conditions):
        return None
    try:
        call = warm.call(graph_location(gm))
    except Exception as error:
        degradations = Diagnostics(of=graph_location(gm))
        degradations.add(f"a graph of an earlier process is compiled again: {first_line(error)}")
        return None
    logger.event("%s: from an earlier process", warm.artefact.name)
    return call


def _keep(kept: ProgramCacheEntry, layers: Layers, conditions: tuple[Any, ...]) -> None:
    """For later processes, once the best program is there; they try again where it could not be built."""
    runner, awaited = layers.runner, layers.runner.awaited

    def keep() -> None:
        if runner.strategy.compiled.degradations.texts or (awaited is not None and awaited.peek() is None):
            return
        try:
            kept.put(CachedGraph(CompiledArtifact.of(runner), replace(layers, runner=None), conditions))  # type: ignore[arg-type]
        except AirError as error:
            logger.debug("%s is not kept: %s", runner.strategy.name, error)

    if awaited is None:
        keep()
    else:
        awaited.then(keep)


def facts_of(
    gm: fx.GraphModule, inputs: Sequence[Any], known_sizes: Environment, settings: Settings
) -> dict[str, str]:
    """All that a compile looks at, as text; `NotPossible` where something is no data."""
    if others := [*options_with_code(), *replaced_ops()]:
        raise NotPossible(f"a part of torch is the user's: {others[0]}")
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        raise NotPossible("it has gradients")
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    plain = [type(value) in TENSORS and value.layout is torch.strided for value in tensors]
    if not all(plain):
        raise NotPossible(f"an input is no plain tensor: {type(tensors[plain.index(False)]).__name__}")
    symbolic = _symbolic(gm, inputs)
    if not known_sizes.has_examples(symbols_of(symbolic)):
        raise NotPossible("only the data decides a size")
    keyed = sorted(cache_key_paths() & set(settings.options))
    return {
        "dynamo graph": digest_of(_lines(gm)),
        "inputs": digest_of(map(repr, tensor_metadata_of(symbolic))),
        "names": digest_of(argument_names(gm)),
        "roles": digest_of(map(_role, gm.graph.find_nodes(op="placeholder"), inputs)),
        "memory": str(_shared(inputs, symbolic)),
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
    """What code for it is made for, and who runs it: others can be installed."""
    row = get_device(device)
    return f"{device_facts(device)} {type(row).__module__}.{type(row).__qualname__} {row.why_no_graphs()}"


def _symbolic(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs as Dynamo knows them: with symbols for sizes. It hands over real ones."""
    nodes = gm.graph.find_nodes(op="placeholder")
    return [node.meta.get("example_value", value) for node, value in zip(nodes, inputs, strict=True)]


def _lines(gm: fx.GraphModule) -> Iterator[str]:
    for node in gm.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            raise NotPossible(f"{node.target} is kept by the graph itself")
        target = node.target if isinstance(node.target, str) else _function(node.target)
        yield f"{node.op} {node.name} {target} {_text(node.args)} {_text(node.kwargs)}"


def _function(target: Any) -> str:
    if isinstance(target, OpOverload):
        if is_custom(target):
            raise NotPossible(f"{target} is the user's")
        return str(target)
    module = str(getattr(target, "__module__", None) or "")
    if not isinstance(target, FUNCTIONS) or not _is_of_torch(target, module):
        raise NotPossible(f"{target} is no function of torch's")
    return f"{module}.{target.__qualname__} {target.__name__}"


def _is_of_torch(target: Any, module: str) -> bool:
    """A function in Python may say that it is torch's (`functools.wraps` does), and may have numbers of its
    own inside.
    """
    if isinstance(target, types.FunctionType):
        is_found = getattr(sys.modules.get(module), target.__name__, None) is target
        return is_found and target.__code__.co_filename.startswith(_TORCH)
    return module.partition(".")[0] in MODULES or getattr(torch, target.__name__, None) is target


def _text(value: Any) -> str:
    """Numbers with their types: True is not 1."""
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
            raise NotPossible(f"a {type(value).__name__} is no data")


def _role(node: fx.Node, value: Any) -> str:
    """What is known of an input beside its form: a parameter, always at one address."""
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


def _shared(inputs: Sequence[Any], symbolic: Sequence[Any]) -> list[int]:
    """Which tensors have their memory in common: each as the first of those. How those overlap whose sizes
    are symbols is told by guards of AOTAutograd's, which are not kept.
    """
    pairs = [pair for pair in zip(inputs, symbolic, strict=True) if isinstance(pair[0], torch.Tensor)]
    ids = [tensor.untyped_storage()._cdata for tensor, _ in pairs]
    uses, first = Counter(ids), {each: place for place, each in reversed(list(enumerate(ids)))}
    if symbols_of([known for (_, known), each in zip(pairs, ids, strict=True) if uses[each] > 1]):
        raise NotPossible("inputs whose sizes are symbols share memory")
    return [first[each] for each in ids]
