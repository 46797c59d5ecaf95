"""Turn inputs that the graph writes into reference inputs: Data -> RefData."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchair.core.log import logger
from torchair.ge.attr import Str
from torchair.ge.graph import INPUT_TYPES, Graph, Op
from torchair.passes.pass_manager import PassContext

REFERENCE = "RefData"
ORIGIN = "_origin_data_name"


def mark_reference_inputs(graph: Graph, ctx: PassContext) -> int:
    """Rename and retype written inputs; return how many changed.

    The new name encodes the layout and identity of the tensor; the old name is stored as an attribute. A
    tensor that is passed twice becomes one reference input; the second input does not change.
    """
    written = [op.inputs[0].op for op in graph.ops if op.type == "Assign"]
    changed = 0
    for op in dict.fromkeys(op for op in written if op.type in INPUT_TYPES and op.type != REFERENCE):
        value = op.outputs[0].meta
        if not isinstance(value, torch.Tensor):
            continue
        name = _name(value)
        if name in graph.by_name:
            ctx.skip(op.name, "the same tensor is a reference input already")
            logger.warning(
                "input %s stays a Data op: it is the same tensor as the reference input %s", op.name, name
            )
            continue
        _rename(graph, op, name)
        changed += 1
    return changed


def _name(value: torch.Tensor) -> str:
    """Build the name of a reference input; unknown sizes are -1."""
    numbers: Iterable[Any] = (*value.shape, *value.stride(), value.storage_offset())
    known = (number if isinstance(number, int) else -1 for number in numbers)
    return "_".join(map(str, (REFERENCE, *known, id(value))))


def _rename(graph: Graph, op: Op, name: str) -> None:
    op.attrs[ORIGIN] = Str(op.name)
    if op.name in graph.feeds:
        graph.feeds[name] = graph.feeds.pop(op.name)
    del graph.by_name[op.name]
    op.name, op.type = name, REFERENCE
    graph.by_name[name] = op
