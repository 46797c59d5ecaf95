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
from torchair.capture.promised import Promised
from torchair.codegen import How, build
from torchair.codegen.eager import EagerCode, generate
from torchair.codegen.graph import has_effect
from torchair.codegen.program import Boxed, Piece
from torchair.core.degraded import Degradations
from torchair.core.errors import BadPass
from torchair.core.program import Program
from torchair.core.torch_private.fake import FakeTensorMode
from torchair.engine.repeats import separate_all
from torchair.fxgraph.contract import Contract
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.ends import placeholders
from torchair.fxgraph.layout import layouts_of, new_values
from torchair.fxgraph.partition import Partition, cut
from torchair.fxgraph.symbols import Binding
from torchair.fxgraph.values import device_of
from torchair.ops import limits, streams
from torchair.scope.super_kernel_options import STRICT, options_of

OUTSIDE = (streams.entry_stream, streams.stream_field)
"""What the function around the pieces calls beside the nodes of scopes and events."""


@dataclass(frozen=True)
class StreamedCode:
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


def has_scopes(gm: fx.GraphModule) -> bool:
    """Is there anything in the graph that a compiler would drop?"""
    return any(_is_outside(node) for node in gm.graph.nodes)


def streamed(
    gm: fx.GraphModule, fake_mode: FakeTensorMode, kind: str, how: How, degradations: Degradations
) -> Program:
    """The program of a graph, piece by piece."""
    gm = copy_graph(gm)
    for node in [node for node in gm.graph.nodes if node.target in streams.KEEP]:
        gm.graph.erase_node(node)  # what several streams touch lives until they have met again
    separate_all(gm, fake_mode)
    fixed = {node for place, node in enumerate(placeholders(gm)) if place in how.static}
    items = list(_items(gm.graph))
    pieces = iter(cut(gm, [(False, item) for item in items if isinstance(item, list)]))
    outer, copies = fx.Graph(gm), dict[fx.Node, fx.Node]()
    opened: list[Mapping[str, str]] = []
    units: list[tuple[str, str]] = []
    for item in items:
        if isinstance(item, fx.Node):
            _follow(item, opened)
            copies[item] = outer.node_copy(item, lambda source: copies[source])
            continue
        piece = next(pieces)
        places = tuple(place for place, taken in enumerate(piece.takes) if taken in fixed)
        with _limited(opened, piece):
            program = _program(kind, piece, replace(how, static=places), degradations)
        if _call(outer, copies, piece, program):
            units.append(_super_kernel(opened))
    _check_units(units, degradations)
    returned: Any = gm.graph.output_node().args[0]
    outer.output(tuple(copies[item] if isinstance(item, fx.Node) else item for item in returned))
    return StreamedCode(generate(fx.GraphModule(gm, outer)), kind).load()


def _follow(node: fx.Node, opened: list[Mapping[str, str]]) -> None:
    """Which scopes are open behind a node."""
    if node.target in streams.ENTER:
        opened.append(streams.attributes(node))
    elif node.target in streams.EXIT:
        opened.pop()


@contextmanager
def _limited(opened: list[Mapping[str, str]], piece: Partition) -> Iterator[None]:
    """A compiler asks how many threads there are, and whether kernels are to be deterministic."""
    attributes = {key: value for scope in opened for key, value in scope.items()}
    module = torch.cpu if device_of(piece.gm).type == "cpu" else streams.device_module()
    with limits.limited(attributes, module):
        yield


def _program(kind: str, piece: Partition, how: How, degradations: Degradations) -> Program:
    """One that is held to what the pieces behind it were compiled for. Where there is nothing to compile, ops
    run.
    """
    has_calls = any(node.op == "call_function" for node in piece.gm.graph.nodes)
    program = build(kind if has_calls else "eager", piece.gm, piece.fakes, how)
    written = tuple(place for place, _ in new_values(piece.gm))
    contract = Contract(layouts_of(piece.gm), Binding(piece.fakes), written)
    return Promised(program, contract, inputs_of(piece.gm, piece.fakes, ()).key, degradations)


def _items(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """Inputs and what stays outside of pieces, and between them the calls of each piece."""
    group: list[fx.Node] = []
    for node in graph.nodes:
        is_outside = node.op == "placeholder" or _is_outside(node)
        if group and (is_outside or node.op == "output"):
            yield group
            group = []
        if is_outside:
            yield node
        elif node.op == "call_function":
            group.append(node)


def _is_outside(node: fx.Node) -> bool:
    return node.target in streams.ALL or node.target in OUTSIDE


def _super_kernel(opened: list[Mapping[str, str]]) -> tuple[str, str]:
    """Name and options of the innermost block that is to be one unit; empty where there is none."""
    keys = (streams.SUPER_KERNEL, streams.SUPER_KERNEL_OPTIONS)
    inner = next((scope for scope in reversed(opened) if keys[0] in scope), {})
    return inner.get(keys[0], ""), inner.get(keys[1], "")


def _check_units(units: Sequence[tuple[str, str]], degradations: Degradations) -> None:
    """Pieces one after the other in blocks of one name are parts of a block."""
    for (name, options), group in itertools.groupby(units):
        count = len(list(group))
        if not name or count < 2:
            continue
        what = f"the block of super_kernel({name!r}) is {count} units: streams or events lie in it"
        if options_of(options).get(STRICT) == "abort":
            raise BadPass(what, next="take them out, or strict-scope-check=bypass").of_user()
        degradations.add(what, next="let streams switch outside of it")


def _call(outer: fx.Graph, copies: dict[fx.Node, fx.Node], piece: Partition, program: Program) -> bool:
    """One call in the function, and a node for each value it gives; whether there is anything to call."""
    if not piece.gives and not any(map(has_effect, piece.gm.graph.nodes)):
        return False
    call = outer.call_function(Piece(program), tuple(copies[node] for node in piece.takes))
    for place, node in enumerate(piece.gives):
        copies[node] = outer.call_function(operator.getitem, (call, place))
        copies[node].meta = dict(node.meta)
    return True
