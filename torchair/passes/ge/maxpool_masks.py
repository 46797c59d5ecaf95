"""MaxPoolWithArgmaxV3 -> MaxPoolWithArgmaxV1, if only the pool's own gradient reads the indices, or nothing.

The gradient accepts the mask of the older op as well.
"""

from __future__ import annotations

from typing import Any

from torchair import ge
from torchair.ge.graph import Graph, Op, Tensor
from torchair.passes.pass_manager import PassContext

POOL, GRADIENT = "MaxPoolWithArgmaxV3", "MaxPoolGradWithArgmaxV3"


def pool_with_masks(graph: Graph, ctx: PassContext) -> int:
    """Replace the pools; return how many changed."""
    consumers = graph.consumers()
    returned = set(graph.returned)
    changed = 0
    for op in [op for op in graph.ops if op.type == POOL]:
        indices = op.outputs[1]
        readers = [reader for reader, _ in consumers.get(indices, ())]
        if indices in returned or not all(_is_gradient_of(reader, op) for reader in readers):
            continue
        x = op.inputs[0]
        y, mask = _build(graph, op, ge.MaxPoolWithArgmaxV1, x)
        _take_place(graph, op.outputs[0], y)
        for reader in readers:
            result = _build(graph, reader, ge.MaxPoolGradWithArgmaxV1, x, reader.inputs[1], mask)
            _take_place(graph, reader.outputs[0], result)
        graph.remove([*readers, op])
        changed += 1
    return changed


def _is_gradient_of(reader: Op, pool: Op) -> bool:
    """Return whether the reader uses the data, the indices and the window of this pool."""
    if reader.type != GRADIENT or reader.inputs[0] is not pool.inputs[0]:
        return False
    return reader.inputs[2] is pool.outputs[1] and _window(reader) == _window(pool)


def _window(op: Op) -> dict[str, Any]:
    """Return the window attributes of the older op, as NHWC vectors."""
    attrs = op.attributes()
    vectors = {name: [1, *attrs[name], 1] for name in ("ksize", "strides", "pads", "dilation")}
    return {**vectors, "ceil_mode": attrs["ceil_mode"]}


def _take_place(graph: Graph, old: Tensor, new: Tensor) -> None:
    new.meta = old.meta
    new.desc.attrs.update(old.desc.attrs)
    graph.replace(old, new)


def _build(graph: Graph, old: Op, make: Any, *inputs: Tensor) -> Any:
    """Build another op with the same window at the position of the old one."""
    count, place = len(graph.ops), graph.ops.index(old)
    origin, graph.origin = graph.origin, old.origin
    with graph:
        result = make(*inputs, **_window(old))
    graph.origin = origin
    new = graph.ops[count:]
    graph.ops[count:] = []
    graph.ops[place:place] = new
    return result
