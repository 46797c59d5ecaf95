"""Changes to an FX graph that leave its meaning as it is."""

from __future__ import annotations

from torch import fx


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph in new nodes; attributes are shared, not copied."""
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        nodes[node] = graph.node_copy(node, lambda n: nodes[n])
    return fx.GraphModule(gm, graph)
