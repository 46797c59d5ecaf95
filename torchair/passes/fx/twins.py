"""Ops that update several of their arguments: the functional op, and the one that writes in place.

The functional op returns the new content of the arguments among its results. `Several` says where; the three
rows below follow one rule: the updated arguments are the last results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from torchair.core.torch_private import OpOverload, find_overload
from torchair.passes.fx.in_place import InPlace, copy_back, getitem
from torchair.passes.fx.memory import arguments, same_place


@dataclass(frozen=True)
class Several:
    """`writes`: argument -> which result is its new content; `returns`: the results of the in-place op."""

    functional: OpOverload
    in_place: OpOverload
    writes: Mapping[str, int]
    returns: tuple[int, ...]


# Functional op -> in-place op, positions of the arguments it updates.
_LAST_RESULTS: dict[str, tuple[str, tuple[int, ...]]] = {
    f"npu.{name}_functional.default": (f"npu.{name}.default", mutated)
    for name, mutated in {
        "npu_kv_rmsnorm_rope_cache_v2": (5, 6),
        "npu_mla_prolog_v3": (9, 10),
        "npu_add_rms_norm_v2": (0, 1),
    }.items()
}


def register_in_place(functional: str, in_place: str, mutated: tuple[int, ...]) -> None:
    """Tell the passes that `in_place` updates these arguments, which `functional` returns as last results.

    Names are full: `mylib.update_cache.default`.
    """
    _LAST_RESULTS[functional] = (in_place, mutated)


def row_of(node: fx.Node) -> Several | None:
    """The row of a node's op, if it has one and both ops are defined."""
    named = _LAST_RESULTS.get(str(node.target))
    if named is None or not isinstance(node.target, OpOverload):
        return None
    in_place = find_overload(named[0])
    if in_place is None:
        return None
    schema = node.target._schema
    rest = len(schema.returns) - len(named[1])
    writes = {schema.arguments[place].name: rest + k for k, place in enumerate(named[1])}
    return Several(node.target, in_place, writes, tuple(range(rest)))


def overwrite_several(work: InPlace, node: fx.Node, row: Several, *, inputs: bool) -> int:
    """Make the node write in place if it may write all of its arguments; `inputs`: write-backs count too."""
    given = {argument.name: value for argument, value in arguments(node)}
    targets = {name: given.get(name) for name in row.writes}
    copies: dict[str, fx.Node] = {}
    for name, old in targets.items():
        why_not = _why_not(work, node, row, name, old, copies, inputs)
        if why_not is not None:
            work.ctx.skip(node, why_not)
            return 0
    roots = [work.memory.root(old) for old in targets.values() if isinstance(old, fx.Node)]
    if len(set(roots)) != len(roots):
        work.ctx.skip(node, "two of the arguments it updates share memory")
        return 0
    _rewrite(work, node, row, targets, copies)
    return 1


def _why_not(
    work: InPlace, node: fx.Node, row: Several, name: str, old: Any, copies: dict[str, fx.Node], inputs: bool
) -> str | None:
    if not isinstance(old, fx.Node):
        return f"its argument {name} is not a tensor of the graph"
    new = getitem(node, row.writes[name])
    if not work.memory.has_input(old):
        return work.why_not_dead(node, old)
    if not inputs:
        return "it updates an input of the graph"
    copy = copy_back(new, lambda target: same_place(target, old))
    if copy is None or new is None:
        return f"{name} is an input that the graph does not update"
    copies[name] = copy
    return work.why_not_written_back(node, old, new, copy)


def _rewrite(
    work: InPlace, node: fx.Node, row: Several, targets: dict[str, Any], copies: dict[str, fx.Node]
) -> None:
    for copy in copies.values():
        work.erase_copy(copy)
    for name, old in targets.items():
        picked = getitem(node, row.writes[name])
        if picked is not None:
            picked.replace_all_uses_with(old)
            work.memory.join(old, picked)
            work.graph.erase_node(picked)
    node.target = row.in_place
    results = node.meta.get("val")
    if isinstance(results, list | tuple):
        kept = tuple(results[index] for index in row.returns)
        node.meta["val"] = kept if len(kept) > 1 else kept[0] if kept else None
    if len(row.returns) == 1:
        picked = getitem(node, row.returns[0])
        if picked is not None:
            picked.replace_all_uses_with(node)
            work.memory.join(node, picked)
            work.graph.erase_node(picked)
