"""Run a graph as the reference: one op after the other on real tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch

from torchair.engine.evaluate import Value, evaluate, flat_values
from torchair.engine.execution_order import writes_argument, writes_last
from torchair.engine.kernels.control import is_number_input, run_control
from torchair.engine.registry import as_host
from torchair.fxgraph.layout import Layout, materialize_layout, memory_of
from torchair.fxgraph.symbols import Binding, Reader, Unreadable
from torchair.ge.builder.random_state import FROM_GENERATOR
from torchair.ge.builder.torch_kernel_binding import inputs_of, skipped
from torchair.ge.graph import (
    INPUT_TYPES,
    OUTPUT_TYPE,
    AliasResult,
    ArgumentFeed,
    ConstantResult,
    Feed,
    Graph,
    NumberResult,
    Op,
    PackFeed,
    RandomFeed,
    Result,
    Tensor,
    TensorResult,
)
from torchair.ge.host import Host, host_dtype

Observer = Callable[[Op, list[Value]], None]


def interpret(
    graph: Graph,
    args: Sequence[Any],
    device: torch.device,
    observe: Observer | None = None,
    parts: Mapping[str, Graph] | None = None,
    before: Observer | None = None,
) -> list[Any]:
    """Run a graph on the flat arguments of its FX graph; return the FX outputs.

    `parts` are the sub-graphs of the main graph that its ops may name. `before` receives each op with the
    values that it will read, `observe` with its results.
    """
    run = _Run(graph, args, device, graph.subgraphs if parts is None else parts, observe, before)
    with torch.no_grad():
        without = skipped(graph)
        for op in writes_last(graph):
            if op.type != OUTPUT_TYPE and op not in without:
                run.step(op)
        return run.results()


@dataclass(eq=False)
class _Run:
    """Hold the values of one run of one graph."""

    graph: Graph
    args: Sequence[Any]
    device: torch.device
    parts: Mapping[str, Graph]
    observe: Observer | None
    before: Observer | None

    def __post_init__(self) -> None:
        self._values: dict[Tensor, Value] = {}
        # Results that share memory with an argument although they do not in FX: copied before it changes.
        self._kept: dict[Tensor, Value] = {}
        self._returned = {result.tensor for result in self.graph.results if isinstance(result, TensorResult)}
        self._owned = {memory_of(arg) for arg in self.args if isinstance(arg, torch.Tensor)}

    def step(self, op: Op) -> None:
        """Run one op."""
        if self.before is not None:
            self.before(op, [self._values[tensor] for tensor in inputs_of(op)])
        if writes_argument(op):
            _copy_before_write(op, self._values)
        output = self._made(op)
        self._values.update(zip(op.outputs, output, strict=True))
        if op.type == "Const":
            self._owned.update(memory for value in output if (memory := memory_of(value)) is not None)
        self._kept.update(
            (tensor, value.clone())
            for tensor, value in zip(op.outputs, output, strict=True)
            if tensor in self._returned and self._shares(value)
        )
        if self.observe is not None:
            self.observe(op, output)

    def _made(self, op: Op) -> list[Value]:
        if op.type in INPUT_TYPES:
            return [feed_value(self.graph.feeds[op.name], self.args)]
        if not op.subgraphs:
            return evaluate(op, self._values, self.device)
        called = [self.parts[name] for name in op.subgraphs]
        given = [
            _argument(self._values[tensor], is_number_input(op, number, called[0]), self.device)
            for number, tensor in enumerate(op.inputs)
        ]
        return flat_values(run_control(op, given, called, self._run_part))

    def _run_part(self, part: Graph, given: list[Any]) -> list[Any]:
        return interpret(part, given, self.device, self.observe, self.parts, self.before)

    def _shares(self, value: Value) -> TypeGuard[torch.Tensor]:
        return isinstance(value, torch.Tensor) and memory_of(value) in self._owned

    def results(self) -> list[Any]:
        """Return the FX outputs."""
        graph, args = self.graph, self.args
        reader = binding_of(graph).reader(args)
        values = self._values | self._kept
        outputs = [read(result, values, args, self.device, reader) for result in graph.results]
        return _laid_out(graph.results, outputs, reader)


def _copy_before_write(op: Op, values: dict[Tensor, Value]) -> None:
    """Copy values that later writes still read before an argument is written."""
    target = values[op.inputs[0]]
    if not isinstance(target, torch.Tensor):
        return
    for tensor, value in values.items():
        if not isinstance(value, torch.Tensor) or tensor.op.type in INPUT_TYPES:
            continue
        if memory_of(value) == memory_of(target):
            values[tensor] = value.clone()


def _argument(value: Value, is_number: bool, device: torch.device) -> Any:
    """Convert a value to an argument of a sub-graph."""
    if not isinstance(value, Host):
        return value
    return value.value if is_number else value.to_tensor(device)


def binding_of(graph: Graph) -> Binding:
    """Return the sources of the symbols in its results."""
    return graph.binding or Binding(_fakes(graph))


def _fakes(graph: Graph) -> list[Any]:
    """Return the fake value of each argument, with symbolic sizes."""
    fakes: dict[int, Any] = {}
    for op in graph.inputs:
        feed, meta = graph.feeds[op.name], op.outputs[0].meta
        if isinstance(feed, ArgumentFeed):
            fakes[feed.index] = meta.value if isinstance(meta, Host) else meta
        elif isinstance(feed, PackFeed) and isinstance(meta, Host):
            fakes |= zip(feed.indices, meta.items, strict=True)
    return [fakes.get(index) for index in range(max(fakes, default=-1) + 1)]


def _laid_out(results: Sequence[Result], made: Sequence[Any], reader: Reader) -> list[Any]:
    """Return the results with the memory layout that FX expects.

    Results that share memory only here get their own memory; strides, and sharing as in FX, are restored.
    """
    owners: dict[int, int] = {}
    groups: dict[int, list[tuple[int, Layout]]] = {}
    laid_out = list(made)
    for place, (result, value) in enumerate(zip(results, made, strict=True)):
        layout = result.layout if isinstance(result, TensorResult) else None
        if layout is None or not isinstance(value, torch.Tensor):
            continue
        if owners.setdefault(memory_of(value) or 0, layout.storage) != layout.storage:
            laid_out[place] = value.clone()
        groups.setdefault(layout.storage, []).append((place, layout))
    for group in groups.values():
        layouts = [_readable(layout, laid_out[place], reader) for place, layout in group]
        values = materialize_layout([laid_out[place] for place, _ in group], layouts)
        for (place, _), value in zip(group, values, strict=True):
            laid_out[place] = value
    return laid_out


def _readable(layout: Layout, value: torch.Tensor, reader: Reader) -> Layout:
    """Return the layout in numbers; data-dependent ones use the traced examples."""
    read = reader.knowing(layout.sizes, value.shape)
    try:
        sizes, strides = tuple(map(read, layout.sizes)), tuple(map(read, layout.strides))
        return replace(layout, sizes=sizes, strides=strides, offset=read(layout.offset))
    except Unreadable:
        return replace(layout, is_example=True)


def read(
    result: Result, values: Mapping[Tensor, Value], args: Sequence[Any], device: torch.device, reader: Reader
) -> Any:
    """Return one FX output from the values of a run."""
    if isinstance(result, ConstantResult):
        return result.value
    if isinstance(result, NumberResult):
        return as_host(values[result.tensor]).value
    if isinstance(result, AliasResult):
        with contextlib.suppress(Unreadable):
            return result.layout.view(args[result.base], reader)
    value, layout = values[result.tensor], result.layout
    if isinstance(value, Host):
        return value.to_tensor(device if layout is None else layout.device)
    return value


def feed_value(feed: Feed, args: Sequence[Any]) -> Value:
    """Return the value of a graph input: an argument tensor, a number as a host value, or several packed."""
    if isinstance(feed, RandomFeed):
        return Host((FROM_GENERATOR,) * feed.count)
    if isinstance(feed, PackFeed):
        return Host(tuple(args[index] for index in feed.indices))
    value = args[feed.index]
    if value is None:
        # AOTAutograd passes nothing for a token, which only orders effects.
        return torch.empty(0)
    return value if isinstance(value, torch.Tensor) else Host(value, host_dtype(value))
