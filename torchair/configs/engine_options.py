"""Translate a config to engine options, and check that session options are set only once."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed as dist

from torchair.configs.option import Cell, Group, cell, walk
from torchair.core.errors import BadOption

# The session options that the Ascend engine of this process was started with; None before it starts.
_session: dict[str, str] | None = None


def engine_options(root: Group) -> tuple[dict[str, str], dict[str, str]]:
    """Return the (local, global) engine options, without unset options and options with a disabled gate."""
    found: dict[str, dict[str, str]] = {"local": {}, "global": {}}
    for path, row in walk(type(root)):
        if row.engine is None:
            continue
        key, encode, gate, scope = row.engine
        read = cell(root, path)
        if read.raw is None or (gate and not _sibling(root, path, gate)):
            continue
        text = encode(read.raw) if encode else read.value
        if text is not None:
            found[scope][key] = text
    return found["local"], found["global"]


def rank_directory(root: str) -> str:
    """Create and return `<root>/worldsize<W>_global_rank<R>`: each rank dumps into its own directory."""
    world, rank = 1, 0
    if dist.is_available() and dist.is_initialized():
        world, rank = dist.get_world_size(), dist.get_rank()
    path = os.path.join(root, f"worldsize{world}_global_rank{rank}")
    os.makedirs(path, exist_ok=True)
    return path


def check_global_options(requested: Mapping[str, str], *, engine: bool) -> None:
    """Raise if session options differ from those of the first graph that the Ascend engine built.

    Without such an engine (`engine=False`) graphs share no session, so nothing is recorded or refused.
    """
    global _session
    if not engine:
        return
    if _session is None:
        _session = dict(requested)
        return
    differing = [key for key, value in requested.items() if _session.get(key) != value]
    if differing:
        raise BadOption(
            "cannot change session options: the engine of this process already runs with other values",
            got="\n".join(
                f"{key}: {requested[key]!r}, running with {_session.get(key)!r}" for key in differing
            ),
            next="use the same session options for all graphs of a process, or start another process",
        )


def _sibling(root: Group, path: str, name: str) -> Cell:
    head, _, _ = path.rpartition(".")
    return cell(root, f"{head}.{name}" if head else name)
