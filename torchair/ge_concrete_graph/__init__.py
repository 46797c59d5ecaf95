"""Provide the old import path of `torchair._ge_concrete_graph`: the same modules under another name."""

import sys

from torchair._ge_concrete_graph import fx2ge_converter, ge_graph, supported_declaration, utils
from torchair.core.log import logger

__all__ = ["fx2ge_converter", "ge_graph", "supported_declaration", "utils"]

for _name in __all__:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]

logger.warning_once("torchair.ge_concrete_graph is deprecated: import from torchair._ge_concrete_graph")
