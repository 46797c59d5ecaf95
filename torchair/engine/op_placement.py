"""Record where lowered nodes run: the scopes of their IR ops, and their control dependencies."""

from __future__ import annotations

from itertools import takewhile

from torch import fx

from torchair.ge.graph import Graph, Op, Tensor
from torchair.ops.streams import scope_analysis


class OpPlacement:
    """Annotate the nodes of each op while a graph is lowered.

    The notes are the attributes of its scopes that act at run time (`places.SCOPE`), and the nodes that it
    depends on besides its inputs (`places.AFTER`).
    """

    def __init__(self, graph: Graph, lowered: fx.Graph) -> None:
        self.is_needed = any(scope_analysis.ACTING & op.attrs.keys() for op in graph.ops)
        self._lowered = lowered
        self._end: fx.Node | None = next(iter(reversed(lowered.nodes)), None)
        self._done: dict[Op, list[fx.Node]] = {}
        self._due: dict[Tensor, list[fx.Node]] = {}

    def add(self, op: Op) -> None:
        """Assign all nodes since the last op to this one.

        If it has none, as for an Identity, the readers of its result inherit its dependencies.
        """
        if not self.is_needed:
            return
        results = list(takewhile(lambda node: node is not self._end, reversed(self._lowered.nodes)))
        self._end = results[0] if results else self._end
        after = [node for waited in op.after for node in self._done.get(waited, ())]
        after += [node for tensor in op.inputs for node in self._due.get(tensor, ())]
        scope = {key: str(op.attrs[key].value) for key in sorted(scope_analysis.ACTING & op.attrs.keys())}
        for node in results:
            node.meta |= {scope_analysis.SCOPE: scope} if scope else {}
            node.meta |= {scope_analysis.AFTER: after} if after else {}
        sources = [node for tensor in op.inputs for node in self._done.get(tensor.op, ())]
        self._done[op] = results or [*sources, *after]
        if not results:
            self._due |= {tensor: after for tensor in op.outputs if after}
