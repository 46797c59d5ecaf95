"""External constants: graph constants whose memory is owned elsewhere and may be updated, such as the weights
of a module traced without Dynamo. Values computed from them are not constant.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

aten = torch.ops.aten
HELD = "_held_outside"
"""The mark of an external constant: a key of `meta` in FX, an attribute in the IR."""
# Calls that tracers insert after tensor literals in the user's code, which have no other owner.
LITERALS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


def mark_external(gm: fx.GraphModule) -> None:
    """Mark the external constants in a traced graph."""
    for node in gm.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(gm)
        if isinstance(value, torch.Tensor) and not all(user.target in LITERALS for user in node.users):
            node.meta[HELD] = True


def has_external(gm: fx.GraphModule) -> bool:
    """Return whether the graph has external constants."""
    return any(HELD in node.meta for node in gm.graph.find_nodes(op="get_attr"))
