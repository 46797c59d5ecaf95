"""What tracing took for granted about a call, as plain data: the graph is right only where all of it
holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from torchair.backend.export.signature import leaves_of
from torchair.backend.export.size_expr import holds, names_in
from torchair.backend.export.trace import TracedModel
from torchair.core import dtypes
from torchair.core.errors import BadGraph
from torchair.core.torch_private.fake.fake_tensors import condition_text
from torchair.fxgraph.symbols import is_symbol

NAMED = complex | torch.dtype | torch.device | torch.layout | torch.memory_format


def granted(
    traced: TracedModel, arguments: Mapping[str, Any], defaults: Mapping[str, Any], read: Collection[Any]
) -> dict[str, Any]:
    """Of the arguments of a call and those it leaves out; `read` are the places of the graph's inputs."""
    leaves = leaves_of(arguments)
    return {
        "places": list(leaves),
        "constants": _told(leaves_of({**defaults, **arguments})),
        "defaults": _told(leaves_of(defaults)),
        "same": _same(leaves),
        "unread": _unread(traced, leaves, read),
        "guards": _guards(traced),
    }


def _told(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {path: text for path, leaf in leaves.items() if (text := told(leaf)) is not None}


def told(value: Any) -> str | None:
    """A value that becomes part of the graph, as text: signed zeros, 1, 1.0 and True differ, NaN is NaN."""
    if value is None or isinstance(value, bool | NAMED):
        return repr(value)
    kind = next((kind for kind in (int, float, str) if isinstance(value, kind)), None)
    return None if kind is None else repr(kind(value))


def spec_of(fake: torch.Tensor) -> dict[str, Any]:
    """Sizes, as numbers or text, and the type."""
    sizes = [str(size.node.expr) if is_symbol(size) else int(size) for size in fake.shape]
    return {"sizes": sizes, "dtype": dtypes.to_ge(fake.dtype)}


def _same(leaves: Mapping[str, Any]) -> list[list[str]]:
    """Places that had one tensor: the graph knows it once."""
    places: dict[int, list[str]] = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), []).append(path)
    return [paths for paths in places.values() if len(paths) > 1]


def _unread(traced: TracedModel, leaves: Mapping[str, Any], read: Collection[str]) -> list[dict[str, Any]]:
    """Tensors of which tracing saw only what they are like."""
    found: list[dict[str, Any]] = []
    for path, leaf in leaves.items():
        fake = traced.fakes.get(id(leaf)) if path not in read else None
        if fake is not None:
            found.append({"at": path, **spec_of(fake)})
    return found


def _guards(traced: TracedModel) -> list[str]:
    """Conditions on sizes. Where one cannot be written as text, its sizes are fixed."""
    env = traced.ctx.info.fake_mode.shape_env
    if env is None:
        return []
    found: dict[str, None] = {}
    for fact in (*(guard.expr for guard in env.guards), *traced.facts):
        text, symbols = condition_text(env, fact)
        if text and all(value is not None for value in symbols.values()):
            fixed = " and ".join(f"{name} == {value}" for name, value in symbols.items())
            found[text if _is_right(text, symbols) else fixed] = None
    return list(found)


def _is_right(text: str, values: Mapping[str, Any]) -> bool:
    try:
        return names_in(text) <= values.keys() and holds(text, values)
    except BadGraph:
        return False
