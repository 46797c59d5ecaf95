"""Export of a model as a graph file: its place, and its signature. Writing one is still to come."""

from __future__ import annotations

from typing import Any

import torch

from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import NotYet


def dynamo_export(
    *args: Any,
    model: torch.nn.Module,
    export_path: str = "export_file",
    export_name: str = "export",
    dynamic: bool = False,
    config: CompilerConfig = CompilerConfig(),  # noqa: B008 - read, never written
    **kwargs: Any,
) -> None:
    """Write `model`, traced with these sample inputs, as `<export_path>/<export_name>.air`."""
    raise NotYet(
        "dynamo_export writes no files in this version",
        next="config.debug.graph_dump writes the graph of a compiled model as text",
    )
