"""A graph of Dynamo's that an earlier process has compiled: AOTAutograd, conversion and code are taken from
disk.

Kept are graphs without gradients that consist of torch's own functions and plain values, once their best
program is there, if nothing about them was less than promised and nobody asked to see them compiled. The key
is all that a compile looks at: the graph, what is known of its inputs, the options, and the state of torch.
What a compile took for granted about sizes is kept as conditions, which become guards again.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.nn import Parameter

from torchair.backend.aot import Decompositions, compile_dynamo
from torchair.backend.artefact import Artefact
from torchair.backend.gears import has_gears
from torchair.backend.kept import Kept, digest_of, process_facts
from torchair.backend.order import likes_of, symbols_of
from torchair.backend.plain import Kept as Layers
from torchair.backend.settings import NEVER, Settings
from torchair.backend.surroundings import Surroundings
from torchair.codegen.graph import is_custom
from torchair.configs.freeze import cache_key_paths
from torchair.core.degraded import Degradations
from torchair.core.errors import AirError, NotPossible, first_line
from torchair.core.extensions import EXTENSIONS
from torchair.core.facts import device_facts
from torchair.core.identity import BY_TEXT, PLAIN
from torchair.core.log import logger
from torchair.core.torch_private.aot import FixedNumbers, argument_names
from torchair.core.torch_private.fake import FakeTensor
from torchair.core.torch_private.ops import OpOverload
from torchair.core.torch_private.symbols import Symbols, guarded, taken_for_granted
from torchair.debug.options import DebugOptions
from torchair.debug.run_folder import is_debugging

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
TENSORS = (torch.Tensor, Parameter, FakeTensor)
MODULES = ("torch", "math", "operator", "_operator", "builtins")
"""Whose functions are the same in every process with the same torch."""


@dataclass(frozen=True)
class Warm:
    """What is kept of a graph: a runner as data, the work around its calls, and conditions on sizes."""

    artefact: Artefact
    layers: Layers
    conditions: tuple[Any, ...]

    def call(self) -> Callable[..., Any]:
        """As Dynamo calls it."""
        layers = replace(self.layers, runner=self.artefact.runner())
        run = layers.call()
        run.kept = layers  # type: ignore[attr-defined]
        return run


@dataclass(frozen=True)
class TracedAgain:
    """A graph that was not compiled: Dynamo had to trace it again, with the values of these numbers."""

    numbers: tuple[str, ...]


def compile_or_take(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, decompositions: Decompositions
) -> Callable[..., Any]:
    """What `compile_dynamo` makes of a graph, or made in an earlier process."""
    is_graph = isinstance(gm, fx.GraphModule)  # any module can be compiled with real inputs
    if not is_graph or decompositions or has_gears(inputs) or not _is_usual(settings):
        return compile_dynamo(gm, inputs, settings, decompositions)
    numbers = symbols_of(_symbolic(gm, inputs))
    try:
        facts = facts_of(gm, inputs, numbers, settings)
    except (NotPossible, LookupError) as error:
        logger.debug("what is compiled after Dynamo is not kept: %s", error)
        return compile_dynamo(gm, inputs, settings, decompositions)
    kept = Kept.of(facts, settings.program_cache_mb << 20)
    found = None if kept is None else _taken(kept, numbers)
    if found is not None:
        return found
    conditions = taken_for_granted(numbers)
    try:
        compiled = compile_dynamo(gm, inputs, settings, decompositions)
    except FixedNumbers.Asked:
        if kept is not None:
            kept.put(TracedAgain(FixedNumbers.now()))
        raise
    layers: Layers | None = getattr(compiled, "kept", None)
    if kept is not None and layers is not None:
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
        settings.debug != DebugOptions(),
        is_debugging(),
        bool(EXTENSIONS),
    )
    return not any(unusual)


def _taken(kept: Kept, numbers: Sequence[torch.SymInt]) -> Callable[..., Any] | None:
    warm = kept.get()
    if isinstance(warm, TracedAgain):
        FixedNumbers.ask(warm.numbers)
    if not isinstance(warm, Warm) or not guarded(numbers, warm.conditions):
        return None
    try:
        call = warm.call()
    except Exception as error:
        degradations = Degradations()
        degradations.add(f"a graph of an earlier process is compiled again: {first_line(error)}")
        return None
    logger.event("%s: from an earlier process", warm.artefact.name)
    return call


def _keep(kept: Kept, layers: Layers, conditions: tuple[Any, ...]) -> None:
    """For later processes, once the best program is there; they try again where it could not be built."""
    runner, awaited = layers.runner, layers.runner.awaited

    def keep() -> None:
        if runner.strategy.compiled.degradations.texts or (awaited is not None and awaited.peek() is None):
            return
        try:
            kept.put(Warm(Artefact.of(runner), replace(layers, runner=None), conditions))  # type: ignore[arg-type]
        except AirError as error:
            logger.debug("%s is not kept: %s", runner.strategy.name, error)

    if awaited is None:
        keep()
    else:
        awaited.then(keep)


def facts_of(
    gm: fx.GraphModule, inputs: Sequence[Any], numbers: Sequence[torch.SymInt], settings: Settings
) -> dict[str, str]:
    """All that a compile looks at, as text; `NotPossible` where something is no data."""
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        raise NotPossible("it has gradients")
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if odd := [type(value).__name__ for value in tensors if type(value) not in TENSORS]:
        raise NotPossible(f"an input is a {odd[0]}")
    keyed = sorted(cache_key_paths() & set(settings.options))
    return {
        "dynamo graph": digest_of(_lines(gm)),
        "inputs": digest_of(map(repr, likes_of(_symbolic(gm, inputs)))),
        "names": digest_of(argument_names(gm)),
        "roles": digest_of(map(_role, gm.graph.find_nodes(op="placeholder"), inputs)),
        "memory": str(_shared(tensors)),
        "sizes": digest_of(Symbols.of(numbers).lines()),
        "settings": _text({path: settings.options[path] for path in keyed}),
        "assigned": ", ".join(sorted(settings.assigned & set(keyed))),
        "better programs": str(settings.compile_budget != 0),
        "state": str((Surroundings.now(), _state())),
        "devices": ", ".join(sorted(map(device_facts, {tensor.device for tensor in tensors}))),
        **process_facts(),
    }


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
    is_known = module.partition(".")[0] in MODULES or getattr(torch, str(target.__name__), None) is target
    if not isinstance(target, FUNCTIONS) or not is_known:
        raise NotPossible(f"{target} is no function of torch's")
    return f"{module}.{target.__qualname__}"


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
    """What Dynamo says of an input beside its form: a parameter, always at one address."""
    known = node.meta.get("tensor_dict") or {}
    marks = {name: known[name] for name in known if name.startswith("_dynamo_")}
    is_parameter = isinstance(value, Parameter) or "_parameters[" in str(getattr(node, "_dynamo_source", ""))
    return f"{is_parameter} {getattr(value, 'requires_grad', False)} {sorted(marks.items())}"


def _shared(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Which of them have their memory in common: each as the first of those."""
    ids = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [ids.index(each) for each in ids]


def _state() -> tuple[Any, ...]:
    """What torch asks while it takes functions apart."""
    autocast = [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    attention = [
        operator.attrgetter(f"{name}_sdp_enabled")(torch.backends.cuda)()
        for name in ("flash", "math", "mem_efficient", "cudnn")
    ]
    return (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_cache_enabled(),
        autocast,
        attention,
        str(torch.get_default_device()),
    )
