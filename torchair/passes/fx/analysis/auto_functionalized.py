"""Handle higher-order nodes around ops and kernels that write into their arguments.

AOTAutograd wraps a custom op that mutates tensors: the node clones each of them, runs the op on the clones
and returns them. `annotate` finds the tensors that may be written in place and notes the others in
`meta["only_clone_these_tensors"]`; `decompose_auto_functionalized` then puts the op itself into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.compilers.aot_autograd import ReinplaceCounters, ReInplaceTrigger
from torchair.core.torch_private.compilers.inductor import lower_functionalized
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    detect_fake_mode,
    faking,
    make_fx,
    tree_flatten,
    tree_unflatten,
)
from torchair.core.torch_private.operators.schemas import (
    auto_functionalized,
    auto_functionalized_dense,
    auto_functionalized_v2,
    auto_functionalized_v2_dense,
)
from torchair.fxgraph.effects import flat, written_names
from torchair.passes.fx.analysis.alias_analysis import is_same_view
from torchair.passes.fx.analysis.inplace_analysis import InPlace, copy_back, getitem
from torchair.passes.pass_manager import PassContext

TRITON = getattr(torch.ops.higher_order, "triton_kernel_wrapper_functional", None)
CLONES = "only_clone_these_tensors"
OWN = ("val", "tensor_meta", "unbacked_bindings", "eager_input_vals", CLONES)
"""Metadata keys that apply to a wrapper only."""
DENSE: dict[Any, Callable[..., Any]] = {
    auto_functionalized: auto_functionalized_dense,
    auto_functionalized_v2: auto_functionalized_v2_dense,
}
"""The implementation of each wrapper."""
# Wrapper -> the name under which torch counts tensors that had to be cloned.
TRIGGERS: dict[Any, Any] = {
    auto_functionalized: ReInplaceTrigger.AUTO_FUNC_V1,
    auto_functionalized_v2: ReInplaceTrigger.AUTO_FUNC_V2,
    TRITON: ReInplaceTrigger.TRITON_OPS,
}


@dataclass(frozen=True)
class Slot:
    """Describe one argument that the wrapped op writes: its name or index, its tensors, its new content."""

    key: Any
    olds: tuple[fx.Node, ...]
    new: fx.Node | None


def is_functionalized(node: fx.Node) -> bool:
    """Return whether this node is such a wrapper.

    A wrapper around a region does not count: it has no schema, and all its tensors are cloned.
    """
    wrapped = node.target is TRITON or hasattr(next(iter(node.args), None), "_schema")
    return node.op == "call_function" and node.target in TRIGGERS and wrapped


def decompose_auto_functionalized(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Replace the wrapper by the real mutating op, after clones of only the tensors that were noted."""
    wrapped = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in TRIGGERS]
    if wrapped:
        fake_mode = detect_fake_mode(ctx.inputs)
        for node in [node for node in wrapped if node.target in DENSE and is_functionalized(node)]:
            _unwrap(gm.graph, node, fake_mode)
        lower_functionalized(gm, fake_mode)  # kernels and regions
        gm.graph.lint()
        gm.recompile()
    return len(wrapped)


def _unwrap(graph: fx.Graph, node: fx.Node, fake_mode: FakeTensorMode | None) -> None:
    """Trace the wrapper's implementation into the graph in place of the wrapper.

    torch's own decomposition leaves wrappers of some dtypes in the graph. It also treats the single result of
    an op that writes nothing as a tuple.
    """
    given, spec = tree_flatten(dict(node.kwargs))
    nodes = list(dict.fromkeys(value for value in given if isinstance(value, fx.Node)))
    clones = node.meta.get(CLONES)

    def run(*values: Any) -> Any:
        known = dict(zip(nodes, values, strict=True))
        flat_kwargs = [known.get(x, x) if isinstance(x, fx.Node) else x for x in given]
        named: Any = tree_unflatten(flat_kwargs, spec)
        return DENSE[node.target](node.args[0], None if clones is None else tuple(clones), **named)

    with nullcontext() if fake_mode is None else faking(fake_mode):
        tracer = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)
        traced = tracer(*(known.meta["val"] for known in nodes))
    feeds, copies = iter(nodes), dict[fx.Node, fx.Node]()
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(feeds)
            elif inner.op != "output":
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
                about = {key: value for key, value in node.meta.items() if key not in OWN}
                copies[inner].meta = {**inner.meta, **about}
    result: Any = fx.map_arg(traced.graph.output_node().args[0], copies.__getitem__)
    for place, value in enumerate(node.meta["val"]):
        if result[place] not in nodes and isinstance(result[place], fx.Node):
            result[place].meta["val"] = value  # with the symbols of the graph
    _pick(graph, node, result)
    for copy in reversed(copies.values()):
        if copy not in nodes and not copy.users and not copy.is_impure():
            graph.erase_node(copy)


def _pick(graph: fx.Graph, node: fx.Node, values: Any) -> None:
    """Let the getitem readers of a node use the values directly."""
    for user in list(node.users):
        value = values[user.args[1]]
        if isinstance(value, list | tuple):
            _pick(graph, user, value)
        else:
            user.replace_all_uses_with(value)
            graph.erase_node(user)
    graph.erase_node(node)


def annotate(work: InPlace, node: fx.Node) -> int:
    """Note which tensors must be cloned; return how many need no clone."""
    slots = list(_slots(node))
    cloned, taken = [], set[fx.Node]()
    for slot in slots:
        roots = [work.memory.root(old) for old in slot.olds]
        distinct = len(set(roots)) == len(roots) and not taken & set(roots)
        why_not = _why_not(work, node, slot) if distinct else "two tensors that it writes share memory"
        if why_not is not None:
            work.ctx.skip(node, f"{slot.key}: {why_not}")
            cloned.append(slot.key)
            continue
        taken.update(roots)
        _free(work, slot)
    if node.target is TRITON:
        node.update_kwarg("tensors_to_clone", cloned)
    else:
        node.meta[CLONES] = cloned
    ReinplaceCounters.add_missed_opportunities(TRIGGERS[node.target], len(cloned))
    return len(slots) - len(cloned)


def _slots(node: fx.Node) -> Iterator[Slot]:
    if node.target is TRITON:
        for name in node.kwargs["tensors_to_clone"]:  # type: ignore[union-attr]
            yield Slot(name, (node.kwargs["kwargs"][name],), getitem(node, name))  # type: ignore[index]
        return
    op: Any = node.args[0]
    # The results of the op (one None if it has none) come before the new tensors.
    first = max(1, len(op._schema.returns))
    if node.target is auto_functionalized_v2:
        for number, base in enumerate(node.kwargs["_all_bases"]):  # type: ignore[arg-type]
            yield Slot(number, (base,), getitem(node, first + number))
        return
    for number, name in enumerate(written_names(op)):
        olds = tuple(old for old in flat(node.kwargs[name]) if isinstance(old, fx.Node))
        if olds:
            yield Slot(name, olds, getitem(node, first + number))


def _why_not(work: InPlace, node: fx.Node, slot: Slot) -> str | None:
    for number, old in enumerate(slot.olds):
        if not work.memory.has_input(old):
            why_not = work.why_not_dead(node, old, slot.new)
        else:
            copy = _copy(slot, number, old)
            why_not = "it is an input that the graph does not update"
            if copy is not None:
                why_not = work.why_not_written_back(node, old, copy.args[1], copy)  # type: ignore[arg-type]
        if why_not is not None:
            return why_not
    return None


def _copy(slot: Slot, number: int, old: fx.Node) -> fx.Node | None:
    """Return the write-back node of one tensor; the tensors of a list argument need one more getitem."""
    new = slot.new
    if new is not None and len(slot.olds) > 1:
        new = getitem(new, number)
    return copy_back(new, lambda target: is_same_view(target, old))


def _free(work: InPlace, slot: Slot) -> None:
    """Mark the new content as stored where the old one was, and erase the write-backs."""
    for number, old in enumerate(slot.olds):
        copy = _copy(slot, number, old)
        if copy is not None:
            work.erase_copy(copy)
    if slot.new is not None:
        work.memory.join(slot.new, *slot.olds)
