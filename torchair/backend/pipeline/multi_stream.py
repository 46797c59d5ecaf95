"""A compiled program of a graph with scopes that act: what is between two of their nodes is compiled by
itself, and a short Python function calls the pieces, on their streams and behind their events.

A compiler knows one stream; across scopes nothing is fused, moved or given the same memory.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchair.capture import inputs_of
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.codegen import CodegenOptions, build
from torchair.codegen.base.graph_prep import has_effect
from torchair.codegen.base.programs import Boxed, Piece
from torchair.codegen.eager import EagerCode, generate
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadPass
from torchair.core.program import Program
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.engine.trace_cache import separate_all
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.layout import layouts_of, new_values
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.partition import Partition, cut
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Binding
from torchair.ops.distributed.collectives import POINT_TO_POINT
from torchair.ops.streams import core_limits, stream_ops
from torchair.scope.super_kernel_options import STRICT, options_of

OUTSIDE = (stream_ops.entry_stream, stream_ops.stream_field)
"""What the function around the pieces calls beside the nodes of scopes and events."""


@dataclass(frozen=True)
class MultiStreamCode:
    """A function whose pieces are of some code generator."""

    outer: EagerCode
    kind: str

    @property
    def source(self) -> str:
        """The function, then its pieces."""
        pieces = [value for value in self.outer.functions.values() if isinstance(value, Piece)]
        return "\n\n".join([self.outer.source, *(piece.program.source for piece in pieces)])

    def load(self) -> Boxed:
        """Ready to run."""
        return Boxed(self, self.outer.load().run)


class StreamSegment(Piece):
    """The place of a piece in the function, for which there is no program yet; `static` are the places of its
    inputs that stay where they are, `scopes` the attributes of the scopes around it.
    """

    def __init__(self, piece: Partition, static: tuple[int, ...], scopes: Mapping[str, str]) -> None:
        self.gm, self.inputs, self.static = piece.gm, piece.fakes, static
        self._scopes = scopes

    @property
    def is_empty(self) -> bool:
        """Is there nothing to compile? Then its ops run."""
        return not any(node.op == "call_function" and not is_message(node) for node in self.gm.graph.nodes)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A compiler asks how many threads there are, and whether kernels are to be deterministic."""
        module = torch.cpu if device_of(self.gm).type == "cpu" else stream_ops.device_module()
        with core_limits.limited(self._scopes, module):
            yield

    def held(self, program: Program, degradations: Diagnostics) -> Program:
        """The program, held to what the pieces behind it are compiled for."""
        written = tuple(place for place, _ in new_values(self.gm))
        contract = OutputLayouts(layouts_of(self.gm), Binding(self.inputs), written)
        return LayoutEnforcer(program, contract, inputs_of(self.gm, self.inputs, ()).key, degradations)


@dataclass(frozen=True)
class StreamPartition:
    """A graph that is cut at its scopes: the function around the pieces."""

    outer: EagerCode

    @property
    def slots(self) -> list[StreamSegment]:
        """Its pieces, in the order in which they are called."""
        return [value for value in self.outer.functions.values() if isinstance(value, StreamSegment)]

    def filled(self, programs: Mapping[StreamSegment, Program], kind: str) -> Program:
        """The program of the graph, with those of its pieces."""
        functions = {
            name: Piece(programs[value]) if isinstance(value, StreamSegment) else value
            for name, value in self.outer.functions.items()
        }
        return MultiStreamCode(replace(self.outer, functions=functions), kind).load()


def has_scopes(gm: fx.GraphModule) -> bool:
    """Is there anything in the graph that a compiler would drop?"""
    return any(is_outside(node) or is_message(node) for node in gm.graph.nodes)


def streamed(
    gm: fx.GraphModule, fake_mode: FakeTensorMode, kind: str, how: CodegenOptions, degradations: Diagnostics
) -> Program:
    """The program of a graph, piece by piece."""
    whole = cut_at_scopes(gm, fake_mode, how.static, degradations)
    programs: dict[StreamSegment, Program] = {}
    for slot in whole.slots:
        with slot.limited():
            chosen = "eager" if slot.is_empty else kind
            program = build(chosen, slot.gm, slot.inputs, replace(how, static=slot.static))
        programs[slot] = slot.held(program, degradations)
    return whole.filled(programs, kind)


def cut_at_scopes(
    gm: fx.GraphModule, fake_mode: FakeTensorMode, static: Sequence[int], degradations: Diagnostics
) -> StreamPartition:
    """The function around the pieces."""
    check_units(gm, degradations)
    gm = copy_graph(gm)
    for node in [node for node in gm.graph.nodes if node.target in stream_ops.KEEP]:
        gm.graph.erase_node(node)  # what several streams touch lives until they have met again
    separate_all(gm, fake_mode)
    fixed = {node for place, node in enumerate(placeholders(gm)) if place in static}
    items = list(_items(gm.graph))
    pieces = iter(cut(gm, [(False, item) for item in items if isinstance(item, list)]))
    outer, copies = fx.Graph(gm), dict[fx.Node, fx.Node]()
    opened: list[Mapping[str, str]] = []
    for item in items:
        if isinstance(item, fx.Node):
            _follow(item, opened)
            copies[item] = outer.node_copy(item, lambda source: copies[source])
            continue
        piece = next(pieces)
        places = tuple(place for place, taken in enumerate(piece.takes) if taken in fixed)
        slot = StreamSegment(piece, places, {key: value for scope in opened for key, value in scope.items()})
        _call(outer, copies, piece, slot)
    returned: Any = gm.graph.output_node().args[0]
    outer.output(tuple(copies[item] if isinstance(item, fx.Node) else item for item in returned))
    return StreamPartition(generate(fx.GraphModule(gm, outer)))


def _follow(node: fx.Node, opened: list[Mapping[str, str]]) -> None:
    """Which scopes are open behind a node."""
    if node.target in stream_ops.ENTER:
        opened.append(stream_ops.attributes(node))
    elif node.target in stream_ops.EXIT:
        opened.pop()


def _items(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """Inputs and what stays outside of pieces, and between them the calls of each piece."""
    group: list[fx.Node] = []
    for node in (node for node in graph.nodes if node.target not in stream_ops.KEEP):
        is_border = node.op == "placeholder" or is_outside(node)
        if group and (is_border or is_message(node) or node.op == "output"):
            yield group
            group = []
        if is_border:
            yield node
        elif is_message(node):
            yield [node]
        elif node.op == "call_function":
            group.append(node)


def is_outside(node: fx.Node) -> bool:
    """Does it stay between the pieces: the border of a scope, an event?"""
    return node.target in stream_ops.ALL or node.target in OUTSIDE


def is_message(node: fx.Node) -> bool:
    """Does it wait for another process? It is a piece of its own: a compiler would move it past another, for
    which that process waits.
    """
    return node.target in POINT_TO_POINT


def _super_kernel(opened: list[Mapping[str, str]]) -> tuple[str, str]:
    """Name and options of the innermost block that is to be one unit; empty where there is none."""
    keys = (stream_ops.SUPER_KERNEL, stream_ops.SUPER_KERNEL_OPTIONS)
    inner = next((scope for scope in reversed(opened) if keys[0] in scope), {})
    return inner.get(keys[0], ""), inner.get(keys[1], "")


def check_units(gm: fx.GraphModule, degradations: Diagnostics | None) -> None:
    """A block of a super kernel that is several pieces is told or, where that was asked for, refused. Pieces
    that follow each other in blocks of one name are parts of a block. Without `degradations` nothing is told.
    """
    opened: list[Mapping[str, str]] = []
    units: list[tuple[str, str]] = []
    for item in _items(gm.graph):
        if isinstance(item, fx.Node):
            _follow(item, opened)
        else:
            units.append(_super_kernel(opened))
    for (name, options), group in itertools.groupby(units):
        count = len(list(group))
        if not name or count < 2:
            continue
        what = f"the block of super_kernel({name!r}) is {count} units: streams or events lie in it"
        if options_of(options).get(STRICT) == "abort":
            raise BadPass(what, next="take them out, or strict-scope-check=bypass").of_user()
        if degradations is not None:
            degradations.add(what, next="let streams switch outside of it")


def _call(outer: fx.Graph, copies: dict[fx.Node, fx.Node], piece: Partition, slot: StreamSegment) -> None:
    """One call in the function, if there is anything to call, and a node for each value it gives."""
    if not piece.gives and not any(map(has_effect, piece.gm.graph.nodes)):
        return
    call = outer.call_function(slot, tuple(copies[node] for node in piece.takes))
    for place, node in enumerate(piece.gives):
        copies[node] = outer.call_function(operator.getitem, (call, place))
        copies[node].meta = dict(node.meta)
