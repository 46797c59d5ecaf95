"""The assumptions of tracing about a call, as plain data. The graph is valid only if all of them hold."""

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


def assumptions_of(
    traced: TracedModel, arguments: Mapping[str, Any], defaults: Mapping[str, Any], read: Collection[Any]
) -> dict[str, Any]:
    """Return the assumptions about arguments and defaults; `read` are the paths of the graph's inputs."""
    leaves = leaves_of(arguments)
    return {
        "places": list(leaves),
        "constants": _literals(leaves_of({**defaults, **arguments})),
        "defaults": _literals(leaves_of(defaults)),
        "same": _aliased_arguments(leaves),
        "unread": _unused_tensors(traced, leaves, read),
        "guards": _guards(traced),
    }


def _literals(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {path: text for path, leaf in leaves.items() if (text := literal_of(leaf)) is not None}


def literal_of(value: Any) -> str | None:
    """Return the text of a value that is a constant of the graph; None for other values.

    Signed zeros differ, as do 1, 1.0 and True; NaN equals NaN.
    """
    if value is None or isinstance(value, bool | NAMED):
        return repr(value)
    kind = next((kind for kind in (int, float, str) if isinstance(value, kind)), None)
    return None if kind is None else repr(kind(value))


def spec_of(fake: torch.Tensor) -> dict[str, Any]:
    """Return the sizes of a tensor, as numbers or text, and its dtype."""
    sizes = [str(size.node.expr) if is_symbol(size) else int(size) for size in fake.shape]
    return {"sizes": sizes, "dtype": dtypes.to_ge(fake.dtype)}


def _aliased_arguments(leaves: Mapping[str, Any]) -> list[list[str]]:
    """Return the groups of paths with the same tensor, which is a single input of the graph."""
    places: dict[int, list[str]] = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), []).append(path)
    return [paths for paths in places.values() if len(paths) > 1]


def _unused_tensors(
    traced: TracedModel, leaves: Mapping[str, Any], read: Collection[str]
) -> list[dict[str, Any]]:
    """Return the tensors whose metadata, but not data, was used during tracing."""
    found: list[dict[str, Any]] = []
    for path, leaf in leaves.items():
        fake = traced.fakes.get(id(leaf)) if path not in read else None
        if fake is not None:
            found.append({"at": path, **spec_of(fake)})
    return found


def _guards(traced: TracedModel) -> list[str]:
    """Return the conditions on sizes. If a condition cannot be written as text, its sizes are fixed."""
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
