"""Allocate scratch memory and results in the graph for ops whose scratch size depends on the data.

A recording then has both at fixed addresses, and may update the op's arguments between replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadGraph
from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.passes.fx.analysis.inplace_analysis import getitem
from torchair.passes.fx.analysis.size_nodes import Sizes
from torchair.passes.pass_manager import PassContext


@dataclass(frozen=True)
class Workspace:
    """Name the op that computes the scratch size, the overload that takes the scratch memory, and the
    results.
    """

    query: str
    out: str
    outputs: tuple[str, ...]


_ATTENTION = ("attention_out", "softmax_lse")
OPS: dict[str, Workspace] = {
    f"npu.{name}.default": Workspace(f"npu._{name}_get_max_workspace.default", f"npu.{name}.out", _ATTENTION)
    for name in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
}


def replace_dynamic_workspace_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Replace such ops where the library has the query and the overload; other ops do not change."""
    changed = 0
    for node in list(gm.graph.nodes):
        row = OPS.get(str(node.target)) if node.op == "call_function" else None
        if row is None:
            continue
        query, out = find_overload(row.query), find_overload(row.out)
        if query is None or out is None:
            ctx.skip(node, f"{row.query if query is None else row.out} does not exist")
            continue
        sizes = Sizes(gm.graph)
        values = _results(node, row)
        if not all(sizes.knows(size) for value in values for size in value.shape):
            ctx.skip(node, "a result size is not known before the op runs")
            continue
        _split(gm.graph, node, query, out, values, sizes)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def _results(node: fx.Node, row: Workspace) -> Sequence[torch.Tensor]:
    value: Any = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if len(values) != len(row.outputs):
        raise BadGraph(
            f"{node.target} returns {len(values)} tensors, but {len(row.outputs)} outputs are registered",
            got=str(values),
            near=", ".join(row.outputs),
        ).of_user()
    return values


def _split(
    graph: fx.Graph,
    node: fx.Node,
    query: OpOverload,
    out: OpOverload,
    values: Sequence[torch.Tensor],
    sizes: Sizes,
) -> None:
    with graph.inserting_before(node):
        scratch = graph.call_function(query, node.args, dict(node.kwargs))
        scratch.meta["val"] = values[0].new_empty(0)
        results = [_empty(graph, value, sizes) for value in values]
    for index, new in enumerate(results):
        picked = getitem(node, index)
        if picked is not None:
            picked.replace_all_uses_with(new)
            graph.erase_node(picked)
    node.target = out
    node.kwargs = {**node.kwargs, "workspace": scratch, "out": results}


def _empty(graph: fx.Graph, value: torch.Tensor, sizes: Sizes) -> fx.Node:
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    shape = [sizes.node(size) for size in value.shape]
    result = graph.call_function(torch.ops.aten.empty.memory_format, (shape,), options)
    result.meta["val"] = value
    return result
