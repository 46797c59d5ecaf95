"""Find the line of the user's code that an FX node comes from."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_BETWEEN = (_PACKAGE, os.path.dirname(str(torch.__file__)) + os.sep, contextlib.__file__)
"""Files with functions that compile the called function."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


def source_of(node: Any) -> str:
    """Return the innermost user frame of the node's stack trace, or an empty text: `/path/model.py:41
    cache[mask] += update`. Frames of this package are skipped.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    users = [frame for frame in frames if not frame[0].startswith(_PACKAGE)]
    path, line, text = (users or frames)[-1]
    return f"{path}:{line}   {text.strip()}"


def graph_location(gm: Any) -> str:
    """Return the first user line of the graph, or an empty text."""
    return next((found for node in gm.graph.nodes if (found := source_of(node))), "")


def calling_line() -> str:
    """Return the user line that started the compilation, in the form of `source_of`. Nodes do not have it if
    a function of this package is compiled by itself.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None:
        return ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{path}:{line}   {linecache.getline(path, line).strip()}"


def is_ours(source: str) -> bool:
    """Return whether this line is in this package."""
    return source.startswith(_PACKAGE)
