"""Views of inputs that stay where they are (`frozen_parameter`) are made once, not in every call.

What is frozen is where an input lies; its values may be updated in place. A view shares the memory of its
input and shows every update. Whatever copies values (packed weights, folded constants) would not, and is left
alone. A graph may serve several modules, each with parameters of its own: other tensor objects than those of
the call before get other views. Addresses are not looked at: an input that has moved (`p.data = other`) is
not noticed.
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
# Ops of libraries, which take views as they are given. In generated code a view is a way to count, and free.
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
    """Views that became inputs of a graph, behind the others."""

    make: eager.EagerCode
    """Arguments -> the views."""
    of: tuple[int, ...]
    """The inputs that they are views of."""
    fakes: tuple[torch.Tensor, ...]


def take_views_out(gm: fx.GraphModule, static: Collection[int]) -> FrozenViews | None:
    """Let a graph, which is ours to change, take views of these inputs as inputs; None where it has none."""
    places = {node: place for place, node in enumerate(placeholders(gm))}
    frozen = {node for node, place in places.items() if place in static} - _written(gm)
    found = [node for node in gm.graph.nodes if _is_wanted(node) and root_of(node)[0] in frozen]
    if not found:
        return None
    of = tuple(dict.fromkeys(places[root_of(node)[0]] for node in found))
    make = eager.generate(_maker(gm, found))
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
    """The inputs that the graph writes: whoever reads them reads at a certain time."""
    return {root_of(written)[0] for node in gm.graph.nodes for written in written_by(node)}


def _is_wanted(node: fx.Node) -> bool:
    """Is it a view, for an op that takes views, which nothing but its input decides?"""
    value = node.meta.get("val")
    if node.op != "call_function" or not makes_views(node.target) or not isinstance(value, torch.Tensor):
        return False
    is_fixed = not has_symbols([value, *value.stride(), value.storage_offset()])
    return is_fixed and any(user.target in READERS for user in node.users)


def _maker(gm: fx.GraphModule, views: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph of these views alone, of the same inputs."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        is_view = makes_views(node.target) or node.target is getitem
        if node.op == "placeholder" or (is_view and all(source in twins for source in node.all_input_nodes)):
            twins[node] = graph.node_copy(node, twins.__getitem__)
    graph.output(tuple(twins[view] for view in views))
    return fx.GraphModule(gm, graph)


class WithViews(Boxed):
    """A program that takes views of some of its arguments behind them."""

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
    """Of a program with its views."""

    program: Code
    views: FrozenViews

    def load(self) -> WithViews:
        """Ready to run."""
        program = self.program.load()
        assert isinstance(program, Boxed), "what takes views is one function"
        return WithViews(program, self.views)

    def standalone(self) -> str | None:
        """As a module of its own, which makes the views in every call."""
        write = getattr(self.program, "standalone", None)
        texts = [self.views.make.standalone(), write() if write is not None else None]
        if None in texts:
            return None
        made, inner = texts
        end = "\ndef kernel(*args):\n    return _inner(*args, *_views(*args))\n"
        return f"{made}\n_views = kernel\n{inner}\n_inner = kernel\n{end}"


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """`args -> [args[place] for place in places]`, in C."""
    return itemgetter(*places) if len(places) > 1 else lambda args: (args[places[0]],)
