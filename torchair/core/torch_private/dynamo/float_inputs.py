"""Python floats that Dynamo passes to a graph as tensors because they may change. `dynamic=True` does so with
each float.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

__all__ = ["floats_of_modules"]


def floats_of_modules(gm: fx.GraphModule) -> Iterator[tuple[fx.Node, torch.SymFloat]]:
    """Yield the calls that read such floats from attributes of modules (an epsilon, a scale). Floats that are
    function arguments may differ in each call and are not included.
    """
    for node in gm.graph.find_nodes(op="call_method", target="item"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat) and _is_of_module(node.args[0]):
            yield node, value


def _is_of_module(node: Any) -> bool:
    source = getattr(node.meta.get("grapharg"), "source", None)
    if source is None:
        return False
    kind = source.guard_source
    kind = kind() if callable(kind) else kind  # a property in some versions of torch
    return bool(kind.is_unspecialized_nn_module() or kind.is_specialized_nn_module())
