"""Force graph breaks with `BREAK_GRAPH_OP_LIST`, to find the construct of a model that causes a fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from torchair.core.environment import text_of
from torchair.core.errors import NotPossible
from torchair.core.log import logger
from torchair.core.torch_private.dynamo.graph_breaks import (
    break_at_modules,
    break_at_setitem,
    break_at_slices,
)

LIST = "BREAK_GRAPH_OP_LIST"
WHY = f"{LIST} requests it"

BREAKS: dict[str, Callable[[], None]] = {
    "SLICE": partial(break_at_slices, WHY),
    "SETITEM": partial(break_at_setitem, WHY),
    "NN.CONV3D": partial(break_at_modules, nn.Conv3d),
    "NN.LINEAR": partial(break_at_modules, nn.Linear),
}
_broken: set[str] = set()


def break_graphs() -> None:
    """Enable the graph breaks of the environment variable, from now on and for the whole process."""
    words = [word.strip().upper() for word in text_of(LIST).split(",")]
    requested = dict.fromkeys(word for word in words if word)
    unknown = [word for word in requested if word not in BREAKS]
    if unknown:
        what = f"{LIST} contains unknown constructs: {', '.join(unknown)}"
        raise NotPossible(what, next=f"choose from {', '.join(BREAKS)}")
    for word in requested:
        if word not in _broken:
            _broken.add(word)
            BREAKS[word]()
            logger.warning("graphs break at %s: %s", word, WHY)
