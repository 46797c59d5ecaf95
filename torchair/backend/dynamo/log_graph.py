"""Log a graph at INFO level before it is compiled: its inputs, its nodes, the changed options."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.backend.settings.settings import Settings
from torchair.configs.binding import default_of
from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import walk
from torchair.core.log import AirLogger, capture_logger, logger


def log_graph(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, phase: str) -> None:
    """Log the graph with the logger of the mode, if its level is enabled."""
    log: AirLogger = capture_logger if settings.captures else logger
    if not log.isEnabledFor(logging.INFO):
        return
    log.info("compiling a %s graph of %d nodes", phase, len(gm.graph.nodes))
    for index, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False)):
        log.info("input %d %s: %s", index, node.name, _describe(value))
    log.info("FX graph:\n%s", gm.print_readable(print_output=False).rstrip())
    given = {path: settings.options[path] for path, _ in walk(OptionTree)}
    changed = {path: value for path, value in given.items() if value != default_of(path)}
    log.info("options: %s", changed or "all defaults")


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype}{list(value.shape)} on {value.device}, strides {tuple(value.stride())}"
