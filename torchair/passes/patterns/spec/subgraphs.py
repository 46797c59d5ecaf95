"""Find graphs inside a graph: branches of `torch.cond` and bodies of loops, which are searched as well."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from torchair.core.torch_private.operators.schemas import HigherOrderOperator

SEARCHED = ("cond", "while_loop", "invoke_subgraph")
"""Ops that run a graph as it is. Others interpret it, such as a score function of attention."""


def branches_of(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """Yield each nested graph once, those of branches too."""
    seen: set[int] = set()
    rest = [gm]
    while rest:
        for branch in _branches(rest.pop()):
            if id(branch) not in seen:
                seen.add(id(branch))
                rest.append(branch)
                yield branch


def _branches(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    for node in gm.graph.find_nodes(op="get_attr"):
        inner = getattr(gm, str(node.target), None)
        if isinstance(inner, fx.GraphModule) and node.users and all(map(_runs_it, node.users)):
            yield inner


def _runs_it(node: fx.Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in SEARCHED
