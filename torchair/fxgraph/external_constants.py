"""Constants of a graph whose memory others hold and may update: weights, where a module was traced without
Dynamo. Nothing computed from them is a constant.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

aten = torch.ops.aten
HELD = "_held_outside"
"""The mark of such a constant: a key of `meta` here, an attribute in the IR."""
# What tracers put behind the tensors of the user's text, which nobody else holds.
LITERALS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


def mark_external(gm: fx.GraphModule) -> None:
    """Mark them in a graph as a tracer left it."""
    for node in gm.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(gm)
        if isinstance(value, torch.Tensor) and not all(user.target in LITERALS for user in node.users):
            node.meta[HELD] = True


def has_external(gm: fx.GraphModule) -> bool:
    """Is there one?"""
    return any(HELD in node.meta for node in gm.graph.find_nodes(op="get_attr"))
