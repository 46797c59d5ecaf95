"""Pack of host inputs -> one host input: a list of sizes that are all call arguments is fed as one vector."""

from __future__ import annotations

from torchair import ge
from torchair.ge.graph import INPUT_TYPES, Feed, Graph, Op, Tensor
from torchair.ge.host import Host
from torchair.passes.run import PassContext


def optimize_sym_pack(graph: Graph, ctx: PassContext) -> int:
    """Equal packs become one input. The old Data ops stay when somebody else reads them."""
    made: dict[tuple[int, ...], Tensor] = {}
    packs = [op for op in graph.ops if op.type == "Pack" and _all_numbers(op)]
    for op in packs:
        key = tuple(graph.feeds[tensor.op.name].args[0] for tensor in op.inputs)
        if key not in made:
            made[key] = _packed_input(graph, op, key)
        graph.replace(op.outputs[0], made[key])
    graph.remove(packs)
    return len(packs)


def _all_numbers(op: Op) -> bool:
    return bool(op.inputs) and all(
        tensor.op.type in INPUT_TYPES and isinstance(tensor.meta, Host) and not tensor.meta.ndim
        for tensor in op.inputs
    )


def _packed_input(graph: Graph, op: Op, arguments: tuple[int, ...]) -> Tensor:
    with graph:
        packed: Tensor = ge.Data(index=len(graph.inputs))
    packed.meta = op.outputs[0].meta
    graph.feeds[packed.op.name] = Feed("pack", arguments)
    # Ops stay in an order in which they can run: inputs first.
    graph.ops.remove(packed.op)
    graph.ops.insert(0, packed.op)
    return packed
