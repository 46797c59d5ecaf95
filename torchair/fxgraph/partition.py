"""Split one FX graph into partitions that alternately run on the CPU and are recorded.

An op that needs the CPU (its result determines sizes, it reads a device value, it runs on the CPU) splits the
graph: the ops before it and after it can be recorded. Ops move as far forward as data, writes, random numbers
and effects allow, so that there are as few partitions as possible.

Memory, not views of it, is passed from one partition to the next. A view is created again where it is read,
so that a write through it is visible as a write to the memory of its input. Sizes are computed again, too.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.fxgraph.effects import draws, mutates, written_by
from torchair.fxgraph.layout import root_of, viewed_by
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import unbacked_in


@dataclass(frozen=True)
class Partition:
    """One graph of the chain. `takes` and `gives` are nodes of the whole graph, in the order of its inputs
    and outputs.
    """

    gm: fx.GraphModule
    on_host: bool
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]

    @property
    def fakes(self) -> list[Any]:
        """The fake values of its inputs."""
        return [node.meta["val"] for node in self.takes]


def partition(gm: fx.GraphModule, needs_host: Callable[[fx.Node], bool]) -> list[Partition]:
    """Return the partitions that together compute `gm`; a single one if no op needs the CPU."""
    return cut(gm, _groups(gm.graph, needs_host))


def cut(gm: fx.GraphModule, groups: Iterable[tuple[bool, Sequence[fx.Node]]]) -> list[Partition]:
    """Return one partition for each group of calls, in this order; the flag of a group says whether it runs
    on the CPU.
    """
    returned = set(gm.graph.output_node().all_input_nodes)
    # Views and sizes are computed where they are read or returned.
    groups = [
        (on_host, [node for node in group if node in returned or not is_free(node)])
        for on_host, group in groups
    ]
    # Symbols determine sizes: partitions that receive them need not compute sizes.
    symbols = [node for node in placeholders(gm) if _is_symbol(node)]
    wanted = set(returned)
    takes: list[tuple[fx.Node, ...]] = []
    for _, group in groups:
        inside = set(group)
        sources = [source for node in group for source in node.all_input_nodes]
        taken = dict.fromkeys(symbols)
        taken.update(dict.fromkeys(owner for source in sources for owner in _owners(source, inside)))
        wanted.update(taken)
        takes.append(tuple(taken))
    return [
        _partition(gm, group, on_host, taken, tuple(node for node in group if node in wanted))
        for (on_host, group), taken in zip(groups, takes, strict=True)
    ]


def _groups(graph: fx.Graph, needs_host: Callable[[fx.Node], bool]) -> Iterator[tuple[bool, list[fx.Node]]]:
    """Yield groups: all ops that can run on the CPU, all that can be recorded, all with sizes that depend on
    data (which may never repeat), and so on. Views and sizes join any group. Nodes keep their order.
    """
    waits = dependencies(graph)
    side: dict[fx.Node, str] = {}
    for node in waits:
        maker = node.args[0] if node.target is operator.getitem else None
        # A `getitem` stays in the group of the call whose result it selects.
        side[node] = side[maker] if maker in side else _side(node, needs_host)
    left, done = list(waits), set[fx.Node]()
    carried: list[fx.Node] = []
    for turn in itertools.cycle((("host",), ("fixed",), ("fixed", "varying"))):
        group: list[fx.Node] = []
        for node in left:
            if side[node] in (*turn, "free") and waits[node] <= done:
                done.add(node)
                group.append(node)
        left = [node for node in left if node not in done]
        if any(side[node] != "free" for node in group) or not left:
            yield turn == ("host",), [*carried, *group]
            carried = []
        else:
            carried += group
        if not left:
            return


def _side(node: fx.Node, needs_host: Callable[[fx.Node], bool]) -> str:
    if is_free(node):
        return "free"
    if needs_host(node):
        return "host"
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    return "varying" if unbacked_in(values) else "fixed"


def _is_symbol(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat)


def is_free(node: fx.Node) -> bool:
    """Return whether the node is a view or a number computed from sizes, so that no kernel runs."""
    viewed = viewed_by(node)
    if viewed is not None and viewed[1] is not None:
        return True
    value = node.meta.get("val")
    if not isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    # Other ops may read the data of a tensor.
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    return node.target in SIZES or not any(isinstance(s, torch.Tensor | list | tuple) for s in sources)


aten = torch.ops.aten
SIZES = (
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_numel.default,
    aten.sym_storage_offset.default,
)


def dependencies(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Map each call to the calls that must run before it: those that compute its arguments, that read or
    write memory before it writes it, that write memory before it reads it, and, for random numbers and
    effects, the previous such call.
    """
    waits: dict[fx.Node, set[fx.Node]] = {}
    readers: dict[fx.Node, list[fx.Node]] = {}
    writer: dict[fx.Node, fx.Node] = {}
    last: fx.Node | None = None  # the last call with an effect
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        before = {source for source in node.all_input_nodes if source in waits}
        written = {root_of(target)[0] for target in written_by(node)}
        for root in {root_of(source)[0] for source in node.all_input_nodes} | written:
            if root in writer:
                before.add(writer[root])
            if root in written:
                before.update(readers.pop(root, ()))
                writer[root] = node
            readers.setdefault(root, []).append(node)
        if _has_order(node):
            before |= {last} if last is not None else set()
            last = node
        waits[node] = before - {node}
    return waits


def _has_order(node: fx.Node) -> bool:
    """Return whether the order relative to other effects matters, in addition to data dependencies."""
    return draws(node) or (node.is_impure() and not mutates(node.target))


def _owners(node: fx.Node, inside: set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the values that a group needs from other partitions to compute this node."""
    if node in inside or node.op == "get_attr":
        return
    again = _again(node)
    if not again:
        yield node
    for source in again:
        yield from _owners(source, inside)


def _again(node: fx.Node) -> Sequence[fx.Node]:
    """Return the sources of a node that is computed again where it is read; an empty list if the value is
    passed on.
    """
    if node.op != "call_function":
        return ()
    viewed = viewed_by(node)
    if viewed is not None and viewed[1] is None:
        return (viewed[0],)  # written in place: the same tensor
    return node.all_input_nodes if is_free(node) or _is_list_of_views(node) else ()


def _is_list_of_views(node: fx.Node) -> bool:
    """Return whether the node is a list of views (from `split`, for example) that `getitem` selects from."""
    picks = [user for user in node.users if user.target is operator.getitem]
    return bool(picks) and viewed_by(picks[0]) is not None


def _partition(
    gm: fx.GraphModule,
    group: Sequence[fx.Node],
    on_host: bool,
    takes: tuple[fx.Node, ...],
    gives: tuple[fx.Node, ...],
) -> Partition:
    graph = fx.Graph(gm)
    inside = set(group)
    copies: dict[fx.Node, fx.Node] = {}
    for node in takes:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {key: value for key, value in node.meta.items() if key != "unbacked_bindings"}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            viewed = viewed_by(node) if node not in inside else None
            if viewed is not None and viewed[1] is None:
                copies[node] = copied(viewed[0])
            else:
                for source in node.all_input_nodes:
                    copied(source)
                copies[node] = graph.node_copy(node, lambda source: copies[source])
        return copies[node]

    for node in group:
        copied(node)
    graph.output(tuple(copies[node] for node in gives))
    return Partition(fx.GraphModule(gm, graph), on_host, takes, gives)
