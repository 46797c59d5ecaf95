"""Checks a whole graph."""

from torchair.ge.graph import Graph


def verify(graph: Graph) -> None:
    """Raise BadGraph when the graph is not valid."""
