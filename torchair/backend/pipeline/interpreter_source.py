"""A graph of the IR as a module of its own, which the reference engine runs."""

from __future__ import annotations

import torch

from torchair.core.errors import NotPossible
from torchair.ge.files.text import to_python
from torchair.ge.graph import Graph

MODULE = """import torch
from torchair.engine.interpret import interpret
from torchair.ge.files.script import from_python

GRAPH = {graph!r}
graph = from_python(GRAPH)


def kernel(*args):
    return interpret(graph, list(args), torch.device({device!r}))
"""


def interpreted(graph: Graph, device: torch.device) -> str | None:
    """The module; None where the graph holds what has no text."""
    if any(op.objects for part in (graph, *graph.subgraphs.values()) for op in part.ops):
        return None
    try:
        text = to_python(graph, limit=None)
    except NotPossible:
        return None
    return MODULE.format(graph=text, device=str(device))
