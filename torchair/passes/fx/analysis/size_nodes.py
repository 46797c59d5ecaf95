"""Express sizes as nodes: a number, the input that carries a symbol, or an expression of such inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchair.fxgraph.size_nodes import expression_nodes


class Sizes:
    """Create the size nodes of one graph. Symbols come from number inputs, else from sizes of inputs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._symbols: dict[Any, fx.Node] = {}
        self._dims: dict[Any, tuple[fx.Node, int]] = {}
        for node in graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr.is_symbol:
                self._symbols.setdefault(value.node.expr, node)
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                        self._dims.setdefault(size.node.expr, (node, dim))

    def knows(self, number: Any) -> bool:
        """Return whether the number can be computed from the inputs alone."""
        if not isinstance(number, torch.SymInt):
            return True
        return number.node.expr.free_symbols <= self._symbols.keys() | self._dims.keys()

    def node(self, number: Any) -> Any:
        """Return the number itself, or a node at the graph's insertion point that computes it."""
        if not isinstance(number, torch.SymInt):
            return number
        local = dict(self._symbols)
        for symbol in number.node.expr.free_symbols - local.keys():
            tensor, dim = self._dims[symbol]
            local[symbol] = self.graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
            local[symbol].meta["val"] = tensor.meta["val"].shape[dim]
        return expression_nodes(self.graph, local, number)
