"""Remove ops whose results nothing reads and graph inputs without readers; renumber the remaining inputs."""

from __future__ import annotations

from torchair.ge.attr import Int
from torchair.ge.builder.torch_kernel_binding import runs_torch
from torchair.ge.communication import TALKING
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph, Op
from torchair.passes.pass_manager import PassContext

# Ops with side effects.
EFFECTS = frozenset({"Assert", "Assign", "PrintV2", "Cmo", "TorchOp", OUTPUT_TYPE}) | TALKING


def acts(op: Op) -> bool:
    """Return whether the op has, or may have, side effects."""
    return op.type in EFFECTS or runs_torch(op)


def remove_dead_ops(graph: Graph, ctx: PassContext) -> int:
    """Remove ops that no output, no side effect and no host result needs.

    Opaque torch ops may have side effects, so they stay.
    """
    needed: set[Op] = set()
    waiting = [op for op in graph.ops if acts(op)]
    waiting += [tensor.op for tensor in graph.returned]
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
            waiting.extend(op.after)
    dead = [op for op in graph.ops if op not in needed and op.type not in INPUT_TYPES]
    graph.remove(dead)
    return len(dead)


def remove_dead_data_and_reorder_data_index(graph: Graph, ctx: PassContext) -> int:
    """Remove inputs without readers and number the others from 0 (`index`)."""
    read = {tensor.op for op in graph.ops for tensor in op.inputs}
    read |= {tensor.op for tensor in graph.returned}
    dead = [op for op in graph.inputs if op not in read]
    graph.remove(dead)
    for op in dead:
        del graph.feeds[op.name]
    for index, op in enumerate(graph.inputs):
        op.attrs["index"] = Int(index)
    return len(dead)
