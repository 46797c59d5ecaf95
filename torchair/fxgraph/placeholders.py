"""Inputs and outputs of an FX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx


def placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the inputs in order."""
    return list(gm.graph.find_nodes(op="placeholder"))


def output(gm: fx.GraphModule) -> fx.Node:
    """Return the output node."""
    (node,) = gm.graph.find_nodes(op="output")
    return node


def returned(gm: fx.GraphModule) -> Sequence[Any]:
    """Return the outputs as a flat sequence of nodes and constants."""
    value = output(gm).args[0]
    return value if isinstance(value, (list, tuple)) else (value,)
