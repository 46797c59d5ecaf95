"""Map ops that update several tensors to the ops that do the same in place.

The functional op returns the new content of those tensors among its results. There are two kinds: registered
ops, whose last results are the updated arguments, and the `_foreach` ops, which update a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from torchair.core.registries.user_registrations import extend
from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.fxgraph.effects import arguments, flat
from torchair.passes.fx.analysis.alias_analysis import is_same_view
from torchair.passes.fx.analysis.inplace_analysis import InPlace, copy_back, getitem

# Functional op -> in-place op, indices of the arguments that it updates.
_LAST_RESULTS: dict[str, tuple[str, tuple[int, ...]]] = {
    f"npu.{name}_functional.default": (f"npu.{name}.default", mutated)
    for name, mutated in {
        "npu_kv_rmsnorm_rope_cache_v2": (5, 6),
        "npu_mla_prolog_v3": (9, 10),
        "npu_add_rms_norm_v2": (0, 1),
    }.items()
}


def register_in_place(functional: str, in_place: str, mutated: tuple[int, ...]) -> None:
    """Register `in_place` as the op that updates the arguments that `functional` returns last.

    Args:
        functional: Full name of the functional op, such as `mylib.update_cache.default`.
        in_place: Full name of the op that writes in place.
        mutated: Indices of the arguments that `in_place` updates.
    """
    _LAST_RESULTS[functional] = (in_place, mutated)
    extend(f"in place {functional}", [in_place, mutated])


@dataclass(frozen=True)
class Plan:
    """Describe how a node would write in place.

    It maps each updated value to the result with its new content, and lists the results of the in-place op.
    """

    op: OpOverload
    updates: dict[int, Any]
    returns: tuple[int, ...] = ()


def plan_of(node: fx.Node) -> Plan | None:
    """Return the plan for a node if its op updates several tensors and has an in-place variant."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    named = _LAST_RESULTS.get(str(node.target))
    if named is None:
        return _foreach_plan(node)
    op, schema = find_overload(named[0]), node.target._schema
    if op is None:
        return None
    given = {argument.name: value for argument, value in arguments(node)}
    rest = len(schema.returns) - len(named[1])
    updates = {rest + k: given.get(schema.arguments[place].name) for k, place in enumerate(named[1])}
    return Plan(op, updates, tuple(range(rest)))


def _foreach_plan(node: fx.Node) -> Plan | None:
    namespace, name = node.target._schema.name.split("::")  # type: ignore[union-attr]
    if not name.startswith("_foreach_") or name.endswith("_"):
        return None
    op = find_overload(f"{namespace}.{name}_.{node.target._overloadname}")  # type: ignore[union-attr]
    if op is None or not isinstance(node.args[0], list | tuple):
        return None
    return Plan(op, dict(enumerate(node.args[0])))


def overwrite_several(work: InPlace, node: fx.Node, plan: Plan, *, inputs: bool) -> int:
    """Make the node write in place if it may write all of its tensors.

    With `inputs`, write-backs to inputs count too.
    """
    copies: dict[int, fx.Node] = {}
    for result, old in plan.updates.items():
        why_not = _why_not(work, node, result, old, copies, inputs)
        if why_not is not None:
            work.ctx.skip(node, why_not)
            return 0
    roots = [work.memory.root(old) for old in plan.updates.values()]
    if len(set(roots)) != len(roots):
        work.ctx.skip(node, "two of the tensors that it updates share memory")
        return 0
    _rewrite(work, node, plan, copies)
    return 1


def _why_not(
    work: InPlace, node: fx.Node, result: int, old: Any, copies: dict[int, fx.Node], inputs: bool
) -> str | None:
    if not isinstance(old, fx.Node):
        return f"result {result} does not update a tensor of the graph"
    new = getitem(node, result)
    if not (new is None or work.same_layout(new, old, strides=False)):
        return "a new value has another dtype or shape than the old value"
    if not work.memory.has_input(old):
        return work.why_not_dead(node, old, new)
    copy = copy_back(new, lambda target: is_same_view(target, old)) if inputs else None
    if copy is None or new is None:
        return f"{old.name} is an input, or part of an input, that the graph does not update here"
    copies[result] = copy
    return work.why_not_written_back(node, old, new, copy)


def _rewrite(work: InPlace, node: fx.Node, plan: Plan, copies: dict[int, fx.Node]) -> None:
    for copy in copies.values():
        work.erase_copy(copy)
    for result, old in plan.updates.items():
        _replace_pick(work, node, result, old)
    node.target = plan.op
    results = node.meta.get("val")
    returned = [value for index, value in enumerate(flat(results)) if index in plan.returns]
    node.meta["val"] = tuple(returned) if len(returned) > 1 else next(iter(returned), None)
    if len(plan.returns) == 1:
        _replace_pick(work, node, plan.returns[0], node)


def _replace_pick(work: InPlace, node: fx.Node, result: int, by: fx.Node) -> None:
    picked = getitem(node, result)
    if picked is not None:
        picked.replace_all_uses_with(by)
        work.memory.join(by, picked)
        work.graph.erase_node(picked)
