"""Where in the user's code an FX node comes from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


def source_of(node: Any) -> str:
    """`/path/model.py:41   cache[mask] += update`: the innermost frame of the node's stack trace, or an
    empty text. Calls that this package makes for the user are the user's.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    users = [frame for frame in frames if not frame[0].startswith(_PACKAGE)]
    path, line, text = (users or frames)[-1]
    return f"{path}:{line}   {text.strip()}"


def first_source(gm: Any) -> str:
    """The first line of the user's that the graph comes from, or an empty text."""
    return next((found for node in gm.graph.nodes if (found := source_of(node))), "")
