"""Pack of host inputs -> one host input: a list of sizes that are all call arguments is fed as one vector."""

from __future__ import annotations

from torchair import ge
from torchair.ge.graph import ArgumentFeed, Graph, Op, PackFeed, Tensor
from torchair.ge.host import Host
from torchair.passes.pass_manager import PassContext


def optimize_sym_pack(graph: Graph, ctx: PassContext) -> int:
    """Merge packs into host inputs, equal packs into one; Data ops with other readers stay."""
    results: dict[tuple[int, ...], Tensor] = {}
    found = {op: _arguments(graph, op) for op in graph.ops if op.type == "Pack"}
    packs = {op: arguments for op, arguments in found.items() if arguments}
    for op, arguments in packs.items():
        if arguments not in results:
            results[arguments] = _packed_input(graph, op, arguments)
        graph.replace(op.outputs[0], results[arguments])
    graph.remove(packs)
    return len(packs)


def _arguments(graph: Graph, op: Op) -> tuple[int, ...]:
    """Return the argument indices that a Pack joins, or () if it joins anything else."""
    numbers = [tensor for tensor in op.inputs if isinstance(tensor.meta, Host) and not tensor.meta.ndim]
    feeds = [graph.feeds.get(tensor.op.name) for tensor in numbers]
    arguments = tuple(feed.index for feed in feeds if isinstance(feed, ArgumentFeed))
    return arguments if len(arguments) == len(op.inputs) else ()


def _packed_input(graph: Graph, op: Op, arguments: tuple[int, ...]) -> Tensor:
    with graph:
        packed: Tensor = ge.Data(index=len(graph.inputs))
    packed.meta = op.outputs[0].meta
    graph.feeds[packed.op.name] = PackFeed(arguments)
    # Keep ops in an executable order: inputs first.
    graph.ops.remove(packed.op)
    graph.ops.insert(0, packed.op)
    return packed
