"""Nested containers, as torch flattens them."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of nested containers by their path: `['x'][0]`."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(path): leaf for path, leaf in pairs}


def children_of(value: Any) -> list[Any] | None:
    """Return the items of a container that torch knows; None for other types."""
    node = pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else list(node.flatten_fn(value)[0])


flatten, unflatten, leaves = pytree.tree_flatten, pytree.tree_unflatten, pytree.tree_leaves
tree_map = pytree.tree_map
