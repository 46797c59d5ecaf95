"""What is done to a whole graph before code is made of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchair.codegen import cpu
from torchair.core.torch_private.fake import FakeTensorMode
from torchair.core.torch_private.inductor import joint_graph_passes
from torchair.fxgraph.effects import makes_views
from torchair.fxgraph.ends import output, returned
from torchair.fxgraph.symbols import equal
from torchair.fxgraph.values import device_of, twin_on

aten = torch.ops.aten


def improve(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> fx.GraphModule:
    """Inductor's passes and ours. Outputs keep their strides."""
    known = set(gm.graph.nodes)
    promised = [value.meta.get("val") if isinstance(value, fx.Node) else None for value in returned(gm)]
    gm = joint_graph_passes(gm, device_of(gm))
    _keep_strides(gm, promised, known)
    cpu.add_bias_later(gm, fake_mode)
    cpu.give_rows_their_stride(gm, fake_mode)
    return gm


def _keep_strides(gm: fx.GraphModule, promised: list[Any], known: Collection[fx.Node]) -> None:
    """Copy what now lies otherwise. (On CUDA a product may be computed wider than it is, where that measures
    faster; it is a window of the wider one then.)
    """
    end, outputs = output(gm), list(returned(gm))
    for index, (node, value) in enumerate(zip(outputs, promised, strict=True)):
        is_tensor = isinstance(node, fx.Node) and isinstance(value, torch.Tensor)
        if not is_tensor or _viewed(node) in known or _has_strides(node, value):
            continue
        with gm.graph.inserting_before(end):
            outputs[index] = gm.graph.call_function(aten.clone.default, (node,))
        outputs[index].meta = {**node.meta, "val": twin_on(value, value.device)}
    if outputs != list(returned(gm)):
        end.args = (tuple(outputs),)
        gm.recompile()


def _viewed(node: fx.Node) -> fx.Node:
    """What a chain of views looks at."""
    while makes_views(node.target):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _has_strides(node: fx.Node, value: torch.Tensor) -> bool:
    """Those of a view follow from what it looks at: what passes noted of it may be old."""

    def look(node: fx.Node) -> Any:
        target: Any = node.target
        if not makes_views(target):
            return node.meta["val"]
        return target(*fx.map_arg(node.args, look), **fx.map_arg(node.kwargs, look))

    try:
        with node.meta["val"].fake_mode:
            found = look(node)
    except RuntimeError:  # cannot be viewed like that any more: Inductor copies it
        return False
    return all(map(equal, found.stride(), value.stride()))
