"""Graph files as models: read, compiled for this machine, and called, without the code of the model."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchair.backend import call_form
from torchair.backend.compile import codegen_kind, contract_of, finish, pass_context
from torchair.backend.detours import Detours
from torchair.backend.export import CALL
from torchair.backend.settings import Settings, checked, settle
from torchair.backend.stage import Stage
from torchair.capture import Runner
from torchair.configs.compiler_config import CompilerConfig
from torchair.core import dtypes
from torchair.core.degraded import Degradations
from torchair.core.errors import BadCall, BadGraph, NotInThisMode
from torchair.core.torch_private.fake import FakeTensorMode, ShapeEnv, new_size
from torchair.core.torch_private.inductor import lowering_table
from torchair.debug.watch import Watch
from torchair.engine.infer import inference
from torchair.engine.lower import lower
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.air import read_air, read_tensor
from torchair.ge.attr import Int
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.graph import (
    AliasResult,
    ArgumentFeed,
    Desc,
    Graph,
    Op,
    PackFeed,
    RandomFeed,
    Result,
    Slot,
    TensorResult,
    copy_graph,
)
from torchair.ge.host import Host, host_dtype
from torchair.ge.random_state import FROM_GENERATOR
from torchair.ge.verify import verify
from torchair.passes import GE_PASSES, run

LARGE = 1 << 12
"""Bytes from which on a constant is kept apart from the code."""
MANY_SIZES = 64
"""So many sizes are remembered, with the programs that serve them."""
SOME_SIZE = 6
"""A size to trace with, where any will do."""


def load_air(
    path: str | Path, *, device: torch.device | str | None = None, config: CompilerConfig | None = None
) -> LoadedModel:
    """The model of an `.air` file, to be called like the model that was exported; a file of another producer
    is called with its inputs in order, and returns a tuple of its outputs. It is compiled on the first call.
    """
    settings = settle(checked(CompilerConfig() if config is None else config))
    if settings.captures:
        raise NotInThisMode("a graph of the IR runs in graph mode", got=f"mode {settings.mode!r}")
    where = torch.device("cpu" if device is None else device)
    return LoadedModel(read_air(Path(path)), settings, where, Path(path).parent)


@dataclass(frozen=True)
class Input:
    """One flat argument of a graph: a tensor, by where it is in the call or by the file with what it is at
    first; or a number, as text, or where it is in the call.
    """

    at: str = ""
    sizes: tuple[int | str, ...] = ()
    dtype: int = dtypes.UNDEFINED
    number: str = ""
    state: str = ""

    @property
    def title(self) -> str:
        """What the user calls it."""
        return _title(self.at)


@dataclass
class Form:
    """How a graph is called."""

    parameters: list[Any]
    inputs: list[Input]
    result: Any
    places: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    symbols: dict[str, list[int | None]] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    is_foreign: bool = False


class LoadedModel:
    """Compiles its graph once for all sizes that it may have, and once more for each that cannot be served
    so.
    """

    def __init__(self, graph: Graph, settings: Settings, device: torch.device, folder: Path) -> None:
        verify(graph)
        self._graph, self._settings, self._device = graph, settings, device
        self.form = _form(graph)
        graph.results = [_on(result, device) for result in graph.results]
        self._written = _written(graph)
        self._states = {
            each.state: read_tensor(folder / each.state, [int(size) for size in each.sizes], each.dtype).to(
                device
            )
            for each in self.form.inputs
            if each.state
        }
        self.weights = _take_weights(graph, len(self.form.inputs), self.form.weights, device)
        self._symbols = sorted({name for each in self.form.inputs for name in _names(each)})
        self.compiled: dict[tuple[int, ...] | None, _Compiled] = {}
        self._runners: dict[tuple[int, ...], Runner] = {}

    @property
    def weight_bytes(self) -> int:
        """Of all weights."""
        return sum(weight.nbytes for weight in self.weights)

    @property
    def graph(self) -> Graph:
        """The graph, with its weights among the inputs."""
        return self._graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = call_form.leaves_of(self.form.parameters, args, kwargs)
        self._check_constants(leaves)
        values = [None if each.number else self._tensor(each, leaves) for each in self.form.inputs]
        sizes = self._sizes(values, leaves)
        with torch.no_grad():
            given = [
                _evaluate(each.number, sizes) if value is None else self._prepared(value)
                for each, value in zip(self.form.inputs, values, strict=True)
            ]
            outputs = self._runner(sizes)(list(given) + self.weights)
            for place in self._written:
                value = values[place]
                if value is not None and given[place] is not value:
                    value.copy_(given[place])
        return call_form.build(self.form.result, lambda place: self._found(place, outputs, leaves))

    def _found(self, place: Sequence[Any], outputs: Sequence[Any], leaves: Mapping[str, Any]) -> Any:
        match place:
            case ["output", int(number)] if number < len(outputs):
                return outputs[number]
            case ["input", str(path)] if path in leaves:
                return leaves[path]
            case _:
                raise BadGraph("the file describes a result that the graph does not have", got=str(place))

    def _check_constants(self, leaves: Mapping[str, Any]) -> None:
        new = [path for path in leaves if path not in self.form.places and path not in self.form.constants]
        if new and self.form.places:
            raise BadCall(
                f"argument {_title(new[0])} was not given when the graph was made, and is no part of it",
                next="export the model with it",
            )
        for path, value in self.form.constants.items():
            if path in leaves and leaves[path] != value:
                raise BadCall(
                    f"argument {_title(path)} was {value!r} when the graph was made, and is part of it",
                    got=repr(leaves[path]),
                    next=f"export the model once more with {leaves[path]!r}",
                )

    def _prepared(self, value: torch.Tensor) -> torch.Tensor:
        """On the device, and as the graph reads it."""
        return value.to(self._device).resolve_conj().resolve_neg().contiguous()

    def _tensor(self, each: Input, leaves: Mapping[str, Any]) -> torch.Tensor:
        value = self._states[each.state] if each.state else leaves.get(each.at)
        if not isinstance(value, torch.Tensor):
            raise BadCall(f"argument {each.title} must be a tensor", got=repr(value))
        wanted = dtypes.BY_RUNTIME[each.dtype].torch
        if wanted is not None and value.dtype != wanted:
            raise BadCall(f"argument {each.title} must be {wanted}", got=str(value.dtype))
        if value.ndim != len(each.sizes) or any(
            isinstance(size, int) and size != have for size, have in zip(each.sizes, value.shape, strict=True)
        ):
            raise BadCall(
                f"argument {each.title} has other sizes than the graph",
                got=f"{list(value.shape)} instead of [{', '.join(map(str, each.sizes))}]",
                next="export with dynamic=True for a graph of all sizes",
            )
        return value

    def _sizes(self, values: Sequence[Any], leaves: Mapping[str, Any]) -> dict[str, int]:
        """The value of each symbol in this call; what is said of a size must hold."""
        found = {each.number: _number(each, leaves) for each in self.form.inputs if each.number and each.at}
        pairs = [
            (size, have, each)
            for each, value in zip(self.form.inputs, values, strict=True)
            if value is not None
            for size, have in zip(each.sizes, value.shape, strict=True)
            if isinstance(size, str)
        ]
        for size, have, _ in pairs:
            if size.isidentifier():
                found.setdefault(size, int(have))
        for size, have, each in pairs:
            if _evaluate(size, found) != have:
                raise BadCall(
                    f"argument {each.title} has a size of {have}",
                    got=f"{size} is {_evaluate(size, found)} in this call",
                )
        for name, (least, most) in self.form.symbols.items():
            is_below = least is not None and least > 2 and found.get(name, least) < least
            if name in found and (is_below or (most is not None and found[name] > most)):
                raise BadCall(f"the graph is for sizes {name} from {least} to {most}", got=str(found[name]))
        return found

    def _least(self, name: str) -> int:
        return self.form.symbols.get(name, [None, None])[0] or 0

    def _runner(self, sizes: Mapping[str, int]) -> Runner:
        key = tuple(sizes[name] for name in self._symbols)
        if key not in self._runners:
            if len(self._runners) >= MANY_SIZES:
                self.compiled.pop(oldest := next(iter(self._runners)), None)
                del self._runners[oldest]
            general = None if self.form.is_foreign else self._get(None, {})
            found = general if general is not None and general.serves(sizes) else self._get(key, sizes)
            self._runners[key] = found.runner
        return self._runners[key]

    def _get(self, key: tuple[int, ...] | None, sizes: Mapping[str, int]) -> _Compiled:
        if key not in self.compiled:
            self.compiled[key] = _compile(self, sizes)
        return self.compiled[key]

    def stage(self, sizes: Mapping[str, int]) -> tuple[Stage, dict[str, Any]]:
        """The graph as it is about to be compiled: for these sizes, or for all where none are given."""
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        known: dict[str, Any] = dict(sizes)
        if not sizes:
            known = {
                name: new_size(env, name, max(SOME_SIZE + 2 * place, self._least(name)))
                for place, name in enumerate(self._symbols)
            }
        with mode:
            fakes: list[Any] = [
                _evaluate(each.number, known)
                if each.number
                else torch.empty(
                    [_evaluate(size, known) if isinstance(size, str) else size for size in each.sizes],
                    dtype=dtypes.to_torch(each.dtype),
                    device=self._device,
                )
                for each in self.form.inputs
            ]
        static = tuple(range(len(fakes), len(fakes) + len(self.weights)))
        fakes += [mode.from_tensor(weight, static_shapes=True) for weight in self.weights]
        stage = Stage(self._settings, fakes, mode, self._device, static, name=self._graph.name)
        degradations = Degradations(self._settings.strict)
        stage.detours = Detours(degradations=degradations)
        stage.watch = Watch(self._settings.debug, None, False, degradations, stage.name)
        return stage, {name: size.node.expr for name, size in known.items() if is_symbol(size)}


@dataclass
class _Compiled:
    runner: Runner
    env: Any
    symbols: dict[str, Any]  # as they were before anything was learned about them

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Does all that was taken for granted on the way hold for these sizes?"""
        if any(size < 2 for size in sizes.values()):
            return False
        values = {self.symbols[name]: size for name, size in sizes.items()}
        return all(guard.expr.xreplace(values) == True for guard in self.env.guards)  # noqa: E712 - sympy's


def _compile(model: LoadedModel, sizes: Mapping[str, int]) -> _Compiled:
    stage, symbols = model.stage(sizes)
    graph = copy_graph(model.graph)
    infer = inference(stage.fake_mode, stage.device)
    _feed_metas(graph, stage.inputs)
    for op in graph.ops:
        infer(op)
    stage.ge_graph = run(GE_PASSES, graph, pass_context(stage))
    stage.calls = len(graph.ops)
    names = [(f"arg{place}", value) for place, value in enumerate(stage.inputs)]
    lowered = lower(graph, names, stage.fake_mode, stage.device, lowering_table(codegen_kind(stage)))
    stage.layouts = (None,) * len(graph.results)
    runner = finish(lowered, lowered, stage, contract_of(lowered, stage), lambda program, stage: program)
    return _Compiled(runner, stage.fake_mode.shape_env, symbols)


def _feed_metas(graph: Graph, values: Sequence[Any]) -> None:
    """What flows out of the inputs of a graph that is called with these."""
    for op in graph.inputs:
        match graph.feeds[op.name]:
            case ArgumentFeed(index) if isinstance(values[index], torch.Tensor):
                op.outputs[0].meta = values[index]
            case ArgumentFeed(index):
                op.outputs[0].meta = Host(values[index], host_dtype(values[index]))
            case PackFeed(indices):
                op.outputs[0].meta = Host(tuple(values[index] for index in indices), torch.int64)
            case RandomFeed(count):
                op.outputs[0].meta = Host((FROM_GENERATOR,) * count)


# What the file says


def _form(graph: Graph) -> Form:
    written = graph.attrs.pop(CALL, None)
    if written is None:
        return _obvious(graph)
    try:
        facts = json.loads(written.value)
        inputs = [
            Input(
                str(row.get("at", "")),
                tuple(row.get("sizes", ())),
                int(row.get("dtype", dtypes.UNDEFINED)),
                str(row.get("number", "")),
                str(row.get("state", "")),
            )
            for row in facts.pop("inputs")
        ]
        return Form(inputs=inputs, **facts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadGraph(f"{graph.name} does not say how it is called: {error}") from error


def _obvious(graph: Graph) -> Form:
    """The inputs in their order, each with the sizes its descriptor has; an unknown one is a symbol."""
    inputs: list[Input] = []
    names = [op.name if op.name.isidentifier() else f"input{n}" for n, op in enumerate(graph.inputs)]
    for number, op in enumerate(graph.inputs):
        desc = op.outputs[0].desc
        if desc.shape is None or -2 in desc.shape:
            raise BadGraph(f"the input {op.name} of {graph.name} has no rank")
        if not desc.shape and desc.device == "CPU" and not dtypes.to_torch(desc.dtype).is_floating_point:
            inputs.append(Input(f"['{names[number]}']", number=f"n{number}"))
            continue
        sizes = tuple(f"s{number}_{dim}" if size < 0 else size for dim, size in enumerate(desc.shape))
        inputs.append(Input(f"['{names[number]}']", sizes, desc.dtype))
    parameters = [(name, "POSITIONAL_OR_KEYWORD", False) for name in names]
    result = {"tuple": [{"tensor": ["output", place]} for place in range(len(graph.results))]}
    is_foreign = any(each.number or any(isinstance(size, str) for size in each.sizes) for each in inputs)
    return Form(parameters, inputs, result, is_foreign=is_foreign)


def _on(result: Result, device: torch.device) -> Result:
    if isinstance(result, TensorResult | AliasResult) and result.layout is not None:
        return replace(result, layout=replace(result.layout, device=device))
    return result


def _written(graph: Graph) -> list[int]:
    """The arguments that the graph writes."""
    targets = [op.inputs[0].op for op in graph.ops if op.type == "Assign" and op.inputs]
    feeds = [
        graph.feeds.get(op.name) for op in (*targets, *graph.inputs) if op in targets or op.type == "RefData"
    ]
    return sorted({feed.index for feed in feeds if isinstance(feed, ArgumentFeed)})


def _number(each: Input, leaves: Mapping[str, Any]) -> int:
    value = leaves.get(each.at)
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int):
        raise BadCall(f"argument {each.title} must be an integer", got=repr(value))
    return int(value)


def _take_weights(graph: Graph, first: int, names: Sequence[str], device: torch.device) -> list[torch.Tensor]:
    """Constants that were weights, and large ones, become arguments: they are no part of the code."""
    weights: list[torch.Tensor] = []
    for op in graph.ops:
        value = op.attrs.get("value")
        if op.type != "Const" or not isinstance(value, TensorAttr) or value.form is not None:
            continue
        tensor = value.value
        if tensor.is_quantized or (op.name not in names and tensor.nbytes < LARGE):
            continue
        _become_input(graph, op, first + len(weights))
        weights.append(tensor.to(device))
    return weights


def _become_input(graph: Graph, op: Op, index: int) -> None:
    dtype = op.outputs[0].dtype
    op.type, op.attrs = "Data", {"index": Int(index)}
    op.slots = [Slot(Desc("x"), None)]
    op.outputs[0].desc = Desc("y", dtype=dtype)
    graph.feeds[op.name] = ArgumentFeed(index)


def _names(each: Input) -> set[str]:
    texts = [size for size in (*each.sizes, each.number) if isinstance(size, str) and size]
    return {node.id for text in texts for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def _title(path: str) -> str:
    return path[2:].replace("']", "", 1) if path.startswith("['") else path


# Sizes are written as arithmetic on names.

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadGraph(f"{text[:80]!r} is no size") from error


def _evaluate(text: str, values: Mapping[str, Any]) -> Any:
    return _value(_parsed(text), text, values)


def _value(node: ast.expr, text: str, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, text, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, text, values), _value(right, text, values))
        case _:
            raise BadGraph(f"{text[:80]!r} is no size that this call tells", near=", ".join(values))
