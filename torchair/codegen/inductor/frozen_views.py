"""Create views of inputs that never move (`frozen_parameter`) once, instead of in every call.

Frozen inputs keep their addresses; their values may be updated in place. A view shares memory with its input
and sees every update. Ops that copy values (packed weights, folded constants) do not, and are left alone. A
graph may serve several modules with their own parameters: other tensor objects than in the previous call get
other views. Addresses are not compared, so an input that has moved (`p.data = other`) is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import getitem, is_, itemgetter
from typing import Any

import torch
from torch import fx

from torchair.codegen import eager
from torchair.codegen.base.graph_prep import has_effect
from torchair.codegen.base.programs import Boxed
from torchair.core.program import Code, ProgramProxy
from torchair.fxgraph.effects import makes_views, written_by
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import has_symbols

aten = torch.ops.aten
# Library ops, which read views as they are. In generated code, a view is only index arithmetic and free.
READERS = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._int_mm.default,
    aten.convolution.default,
)


@dataclass(frozen=True)
class FrozenViews:
    """Views that became inputs of a graph, after its other inputs."""

    make: eager.EagerCode
    """Computes the views from the arguments."""
    of: tuple[int, ...]
    """Indices of the inputs that they are views of."""
    fakes: tuple[torch.Tensor, ...]


def extract_views(gm: fx.GraphModule, static: Collection[int]) -> FrozenViews | None:
    """Turn views of these inputs into inputs of the graph, which is changed. Return None if there are
    none.
    """
    places = {node: place for place, node in enumerate(placeholders(gm))}
    frozen = {node for node, place in places.items() if place in static} - _written(gm)
    found = [node for node in gm.graph.nodes if _is_library_view(node) and root_of(node)[0] in frozen]
    if not found:
        return None
    of = tuple(dict.fromkeys(places[root_of(node)[0]] for node in found))
    make = eager.generate(_views_graph(gm, found))
    last = list(places)[-1]
    for node in reversed(found):
        with gm.graph.inserting_after(last):
            given = gm.graph.placeholder(f"{node.name}_made_once")
        given.meta = {"val": node.meta["val"]}
        node.replace_all_uses_with(given, delete_user_cb=lambda user: user.target in READERS)
    gm.graph.eliminate_dead_code(is_impure_node=has_effect)
    gm.recompile()
    return FrozenViews(make, of, tuple(node.meta["val"] for node in found))


def _written(gm: fx.GraphModule) -> set[fx.Node]:
    """Return the inputs that the graph writes: their views must be read at the right time."""
    return {root_of(written)[0] for node in gm.graph.nodes for written in written_by(node)}


def _is_library_view(node: fx.Node) -> bool:
    """Return whether the node is a view that a library op reads and that depends only on its input."""
    value = node.meta.get("val")
    if node.op != "call_function" or not makes_views(node.target) or not isinstance(value, torch.Tensor):
        return False
    is_fixed = not has_symbols([value, *value.stride(), value.storage_offset()])
    return is_fixed and any(user.target in READERS for user in node.users)


def _views_graph(gm: fx.GraphModule, views: Sequence[fx.Node]) -> fx.GraphModule:
    """Return a graph with the same inputs that computes only these views."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        is_view = makes_views(node.target) or node.target is getitem
        if node.op == "placeholder" or (is_view and all(source in twins for source in node.all_input_nodes)):
            twins[node] = graph.node_copy(node, twins.__getitem__)
    graph.output(tuple(twins[view] for view in views))
    return fx.GraphModule(gm, graph)


class ProgramWithViews(Boxed):
    """A program with additional arguments: views of some of its arguments."""

    __slots__ = ()

    def __init__(self, program: Boxed, views: FrozenViews) -> None:
        pick, make = _picker(views.of), views.make.load()
        current: tuple[Sequence[Any], list[Any]] = ((), [])

        def call(args: list[Any]) -> Sequence[Any]:
            nonlocal current
            known, made = current
            given = pick(args)
            if not known or not all(map(is_, given, known)):
                made = make(list(args))
                current = (given, made)
            args += made
            return program.run(args)

        super().__init__(ViewsCode(program.code, replace(views, fakes=())), call)


@dataclass(frozen=True)
class ViewsCode(ProgramProxy):
    """Code of a program with frozen views."""

    program: Code
    views: FrozenViews

    def load(self) -> ProgramWithViews:
        """Load the program."""
        program = self.program.load()
        assert isinstance(program, Boxed), "a program with views is a single function"
        return ProgramWithViews(program, self.views)

    def standalone(self) -> str | None:
        """Return a standalone module, which creates the views in every call."""
        write = getattr(self.program, "standalone", None)
        texts = [self.views.make.standalone(), write() if write is not None else None]
        if None in texts:
            return None
        made, inner = texts
        end = "\ndef kernel(*args):\n    return _inner(*args, *_views(*args))\n"
        return f"{made}\n_views = kernel\n{inner}\n_inner = kernel\n{end}"


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return `args -> [args[place] for place in places]`, in C."""
    return itemgetter(*places) if len(places) > 1 else lambda args: (args[places[0]],)
