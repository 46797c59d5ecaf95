"""x.clone(), a slice of everything, a cast to the same dtype … -> x"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.fake import detect_fake_mode
from torchair.core.torch_private.inductor import remove_noops
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import flat
from torchair.fxgraph.layout import ABSOLUTE, dense_order, layout_of, viewed_by
from torchair.fxgraph.values import look_again
from torchair.passes.fx.memory import Memory
from torchair.passes.run import PassContext

aten = torch.ops.aten


def remove_noop_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Inductor's own list of no-ops. Kept where the graph would come to return one of its inputs, or one
    tensor twice, and where a window is taken from the storage: a copy has a storage of its own.
    """
    before, shared = len(gm.graph.nodes), set(_shared(gm.graph))
    together = {place for pair in shared if pair[1] >= 0 for place in pair}
    given = copy_graph(gm)
    windows = [(node, node.args[0]) for target in ABSOLUTE for node in _calls(gm.graph, target)]
    windows = [(node, source) for node, source in windows if _owns_memory(source)]
    fake_mode = detect_fake_mode(ctx.inputs)
    remove_noops(gm, fake_mode)
    if fake_mode is not None:
        look_again(gm.graph, fake_mode)
    for node, source in windows:
        if node.args[0] is not source and not _owns_memory(node.args[0]):
            _copy_for(node, source)
    new = [place for place, other in _shared(gm.graph) if (place, other) not in shared]
    if not together.isdisjoint(new) or not all(_can_be_copied(gm.graph, place) for place in new):
        # Two results share memory that they would get from an input: copies of both would not share it.
        gm.graph = given.graph
        return 0
    for place in new:
        _clone(gm.graph, place)
    gm.recompile()
    return before - len(gm.graph.nodes)


def _calls(graph: fx.Graph, target: Any) -> Iterable[fx.Node]:
    return graph.find_nodes(op="call_function", target=target)


def _owns_memory(node: Any) -> bool:
    """Did this op make the memory it returns, so that it begins where the memory does?"""
    return node.op == "call_function" and viewed_by(node) is None


def _copy_for(node: fx.Node, removed: Any) -> None:
    """Give a window its copy back."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(aten.clone.default, (node.args[0],))
    made.meta.update(removed.meta)
    node.args = (made, *node.args[1:])


def _shared(graph: fx.Graph) -> Iterator[tuple[int, int]]:
    """(a, b): result number a may share memory with the earlier result b, or with an input (-1).

    Inductor asks about one no-op at a time; two clones in a row are each needless, but not both.
    """
    memory, seen = Memory(graph), dict[fx.Node, int]()
    for place, value in enumerate(flat(graph.output_node().args[0])):
        if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        if memory.has_input(value):
            yield place, -1
        root = memory.root(value)
        if root in seen:
            yield place, seen[root]
        seen.setdefault(root, place)


def _can_be_copied(graph: fx.Graph, place: int) -> bool:
    """Has a copy of this result the strides that it has itself?"""
    value = list(flat(graph.output_node().args[0]))[place].meta["val"]
    return value.layout is torch.strided and dense_order(layout_of(value)) is not None


def _clone(graph: fx.Graph, place: int) -> None:
    """A tensor of its own for one result, taken where the value is made: inputs may be written later."""
    output = graph.output_node()
    results = list(flat(output.args[0]))
    value = results[place]
    if value.target is aten.clone.default:
        return
    last_input = list(graph.find_nodes(op="placeholder"))[-1:]
    with graph.inserting_after(last_input[0] if value.op == "placeholder" else value):
        made = graph.call_function(aten.clone.default, (value,))
    made.meta.update(value.meta)
    made.meta["val"] = torch.empty_like(value.meta["val"])
    results[place] = made
    output.args = (results if isinstance(output.args[0], list | tuple) else made,)
