"""If and While: ops with sub-graphs. Run them on values, or as torch's control flow.

The inputs of the op are the inputs of each sub-graph, in order; an If has its condition before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchair.core.errors import UnsupportedOp
from torchair.ge.graph import ConstantResult, Graph, Op
from torchair.ge.host import Host

IF = ("If", "StatelessIf")
WHILE = ("While", "StatelessWhile")

# `run(part, inputs)`: the results of a sub-graph.
Run = Callable[[Graph, list[Any]], list[Any]]


def is_number_input(op: Op, number: int, part: Graph) -> bool:
    """Return whether input `number` is a plain number for its sub-graphs; else it is data, even if
    constant.
    """
    place = number - (len(op.inputs) - len(part.inputs))
    return place >= 0 and isinstance(part.inputs[place].outputs[0].meta, Host)


def run_control(op: Op, inputs: Sequence[Any], parts: Sequence[Graph], run: Run) -> list[Any]:
    """Return the outputs of an op with sub-graphs; inputs and outputs are tensors and numbers."""
    _check(op)
    if op.type in IF:
        condition, *rest = inputs
        return run(parts[0] if bool(condition) else parts[1], rest)
    values = list(inputs)
    while bool(run(parts[0], values)[0]):
        values = run(parts[1], values)
    return values


def control_node(
    graph: fx.Graph, op: Op, inputs: Sequence[Any], parts: Sequence[Graph], modules: Sequence[fx.Node]
) -> tuple[fx.Node, int]:
    """Append the call of torch's own op to `graph`; return it and the number of its results.

    Its results are the first ones of the IR op.
    """
    if op.type in IF:
        condition, *rest = inputs
        result = graph.call_function(torch.ops.higher_order.cond, (condition, *modules, tuple(rest)))
        return result, len(op.outputs)
    count = carried(parts[1])
    result = graph.call_function(
        torch.ops.higher_order.while_loop, (*modules, tuple(inputs[:count]), tuple(inputs[count:]))
    )
    return result, count


def shaped_for_torch(op: Op, parts: Sequence[Graph], modules: Sequence[fx.GraphModule]) -> None:
    """Adapt sub-graphs to torch: a loop condition returns one tensor, and a body only the values that
    change.
    """
    _check(op)
    if op.type in IF:
        return
    condition, body = modules
    output = condition.graph.output_node()
    output.args = (output.args[0][0],)  # type: ignore[index]
    output = body.graph.output_node()
    output.args = (output.args[0][: carried(parts[1])],)  # type: ignore[index]
    for module in modules:
        module.graph.eliminate_dead_code()
        module.recompile()


def carried(body: Graph) -> int:
    """Return how many values of a loop change; the body returns the values after them unchanged."""
    count = len(body.results)
    inputs = body.inputs
    while count > 1:
        last = body.results[count - 1]
        if isinstance(last, ConstantResult) or last.tensor.op is not inputs[count - 1]:
            break
        count -= 1
    return count


def _check(op: Op) -> None:
    if op.type not in (*IF, *WHILE):
        raise UnsupportedOp(
            f"the IR op {op.type} has sub-graphs and no kernel",
            at=op.origin.source if op.origin else "",
            got=f"op {op.name}",
            near=", ".join((*IF, *WHILE)),
        )
