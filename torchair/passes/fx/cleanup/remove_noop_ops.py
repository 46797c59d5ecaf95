"""x.clone(), a slice of everything, a cast to the same dtype … -> x"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import fx

from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import arguments, flat
from torchair.fxgraph.fake_values import look_again
from torchair.fxgraph.layout import ABSOLUTE, COPIES_STORAGE, dense_order, layout_of, memory_of, viewed_by
from torchair.passes.fx.analysis.alias_analysis import Memory, same_sizes
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten
prims = torch.ops.prims
Given = dict[str, Any]


def _always(given: Given) -> bool:
    return True


def _of_integers(given: Given) -> bool:
    value = given["self"].meta["val"]
    return not (value.is_floating_point() or value.is_complex())


def _without_padding(given: Given) -> bool:
    return all(isinstance(size, int) and size == 0 for size in given["pad"])


NOOPS: dict[Any, tuple[str, Callable[[Given], bool]]] = {
    aten.alias.default: ("self", _always),
    aten.cat.default: ("tensors", lambda given: len(given["tensors"]) == 1),
    aten.ceil.default: ("self", _of_integers),
    aten.clone.default: ("self", _always),
    aten.constant_pad_nd.default: ("self", _without_padding),
    aten.copy.default: ("src", lambda given: not given["self"].kwargs.get("pin_memory")),
    aten.floor.default: ("self", _of_integers),
    aten.pow.Tensor_Scalar: ("self", lambda given: type(given["exponent"]) is int and given["exponent"] == 1),
    aten.repeat.default: ("self", _always),
    aten.round.default: ("self", _of_integers),
    aten.slice.Tensor: ("self", _always),
    aten.slice_scatter.default: ("src", _always),
    aten.trunc.default: ("self", _of_integers),
    aten.view.default: ("self", _always),
    aten.view.dtype: ("self", _always),
    prims.convert_element_type.default: ("a", _always),
    prims.device_put.default: ("a", _always),
}
"""Op -> the argument that it returns, and a further condition.

The op is a no-op if the result has the sizes, strides, dtype and device of this argument, and the condition
holds.
"""


def remove_noop_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Remove no-ops, except those that keep results separate or own a storage that is read raw.

    A no-op stays if the graph would otherwise return one of its inputs or one tensor twice. It also stays if
    as_strided reads its storage: a copy has its own storage.
    """
    before, shared = len(gm.graph.nodes), set(_shared(gm.graph))
    together = {place for pair in shared if pair[1] >= 0 for place in pair}
    given = copy_graph(gm)
    windows = list(_windows(gm.graph))
    fake_mode = detect_fake_mode(ctx.inputs)
    _remove(gm.graph)
    if fake_mode is not None:
        look_again(gm.graph, fake_mode)
    remaining = set(gm.graph.nodes)
    for chain in windows:
        _keep_storages(chain, remaining)
    new = [place for place, other in _shared(gm.graph) if (place, other) not in shared]
    if not together.isdisjoint(new) or not all(_can_be_copied(gm.graph, place) for place in new):
        # Two results share memory that would come from an input: copies of both would not share it.
        gm.graph = given.graph
        return 0
    for place in new:
        _clone(gm.graph, place)
    gm.recompile()
    return before - len(gm.graph.nodes)


def _remove(graph: fx.Graph) -> None:
    """Remove no-ops so that no result shares memory with an input or another result."""
    inputs = {memory_of(node.meta.get("val")) for node in graph.find_nodes(op="placeholder")}
    results = [node for node in flat(graph.output_node().args[0]) if isinstance(node, fx.Node)]
    returned = {memory_of(node.meta.get("val")) for node in results}
    for node in graph.nodes:
        source = _returned_by(node)
        if source is None or not _same_layout(node.meta.get("val"), source.meta.get("val")):
            continue
        memory, other = memory_of(node.meta["val"]), memory_of(source.meta["val"])
        if memory == other:
            # Its window is that of the source; the two must not become one tensor where both are visible
            # outside.
            is_kept = node in results and (source in results or source.op == "placeholder")
        else:
            is_kept = memory in returned and (other in inputs or other in returned)
        if not is_kept:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            results = [source if result is node else result for result in results]
            returned |= {other} if source in results else set()


def _returned_by(node: fx.Node) -> fx.Node | None:
    """Return the argument that a no-op returns."""
    if node.op != "call_function" or node.target not in NOOPS:
        return None
    name, holds = NOOPS[node.target]
    given = {argument.name: value for argument, value in arguments(node)}
    source = next(flat(given.get(name)), None)
    return source if isinstance(source, fx.Node) and holds(given) else None


def _same_layout(a: Any, b: Any) -> bool:
    """Return whether two tensors have equal sizes, strides, dtype and device.

    Views of one memory must also have the same storage offset.
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.layout != b.layout:
        return False
    if (a.dtype, a.device, a.is_conj(), a.is_neg()) != (b.dtype, b.device, b.is_conj(), b.is_neg()):
        return False
    if not same_sizes(a.shape, b.shape) or a.layout is not torch.strided:
        return False
    is_one = memory_of(a) == memory_of(b)
    offsets = ([a.storage_offset()], [b.storage_offset()]) if is_one else ([], [])
    return same_sizes(a.stride(), b.stride()) and same_sizes(*offsets)


def _calls(graph: fx.Graph, target: Any) -> Iterable[fx.Node]:
    return graph.find_nodes(op="call_function", target=target)


def _windows(graph: fx.Graph) -> Iterator[list[tuple[fx.Node, bool]]]:
    """Yield the nodes that decide the storage offset for each op that depends on the storage offset.

    Each node comes with whether it owns its memory.
    """
    for target in ABSOLUTE:
        for node in _calls(graph, target):
            chain, source = [(node, True)], cast(fx.Node, node.args[0])
            while source.op == "call_function":
                viewed = viewed_by(source)
                call: Any = source.args[0] if source.target is operator.getitem else source
                chain.append((call, viewed is None))
                if viewed is None and call.target not in COPIES_STORAGE:
                    break
                source = call.args[0] if viewed is None else viewed[0]
            yield chain


def _keep_storages(chain: list[tuple[fx.Node, bool]], kept: set[fx.Node]) -> None:
    """Where a node that owned its memory was removed, give a copy to the node that read it."""
    reader = chain[0][0]
    for node, owns in chain[1:]:
        if node in kept:
            reader = node
        elif owns and not _owns_memory(reader.args[0]):
            _copy_for(reader, node)


def _owns_memory(node: Any) -> bool:
    """Return whether the op allocated the memory it returns, so that its storage offset is 0."""
    return node.op == "call_function" and viewed_by(node) is None


def _copy_for(node: fx.Node, removed: Any) -> None:
    """Restore the copy for an op that depends on the storage offset."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(aten.clone.default, (node.args[0],))
    made.meta.update(removed.meta)
    node.args = (made, *node.args[1:])


def _shared(graph: fx.Graph) -> Iterator[tuple[int, int]]:
    """Yield (a, b): result a may share memory with the earlier result b, or with an input (-1).

    No-ops are examined one at a time: each of two clones in a row is unnecessary, but not both.
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
    """Return whether a copy of this result has the same strides as the result."""
    value = list(flat(graph.output_node().args[0]))[place].meta["val"]
    return value.layout is torch.strided and dense_order(layout_of(value)) is not None


def _clone(graph: fx.Graph, place: int) -> None:
    """Clone one result where its value is computed: inputs may be written later."""
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
