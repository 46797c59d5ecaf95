"""Decide when a new value may overwrite an old one, and rewrite the graph for it.

There are two situations. *Dead*: nothing reads the old value of an intermediate any more, so `b = op(a)`
becomes `op_(a)`. *Written back*: the graph copies the new value over the old one anyway, `copy_(a, op(a))`,
so the op may write there directly and the copy is removed. In both cases events must order every node that
uses the memory on another stream relative to the node that writes.

A scatter (`slice_scatter(a, part)`) becomes a view of `a` and a `copy_` into it. That copy is itself a
write-back, so `part` may in turn be computed in place.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private.device.memory import storage_id
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, faking, is_unbacked
from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.fxgraph.effects import flat, makes_views, mutates, returns_views, written_by, written_names
from torchair.fxgraph.symbols import equal
from torchair.passes.fx.analysis.alias_analysis import (
    RESHAPES,
    Memory,
    are_disjoint,
    is_in_place,
    is_reshape,
    is_same_view,
    is_strict_view,
    overlaps_itself,
    same_sizes,
    tensor,
)
from torchair.passes.fx.analysis.stream_order import Order
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten

# Op that writes a part of a tensor -> op that returns this part as a view.
PARTS: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}


@functools.cache
def in_place_variant(op: Any) -> OpOverload | None:
    """Return the in-place variant, for example `aten.index_copy_.default` for `aten.index_copy.default`.

    It has the same arguments and writes the first one.
    """
    if not isinstance(op, OpOverload) or mutates(op) or returns_views(op):
        return None
    namespace, name = op._schema.name.split("::")
    variant = find_overload(f"{namespace}.{name}_.{op._overloadname}")
    if variant is None or torch.Tag.inplace_view in variant.tags:
        return None
    signature = [[(a.name, str(a.type)) for a in o._schema.arguments] for o in (op, variant)]
    single = len(op._schema.returns) == 1 and str(op._schema.returns[0].type) == "Tensor"
    same_layout = signature[0] == signature[1] and single and signature[0][0][1] == "Tensor"
    return variant if same_layout and written_names(variant) == [signature[1][0][0]] else None


class InPlace:
    """Rewrite one graph in place: alias groups, execution order and the rewrites."""

    def __init__(self, gm: fx.GraphModule, ctx: PassContext) -> None:
        self.gm, self.graph, self.ctx = gm, gm.graph, ctx
        self.memory = Memory(gm.graph)
        self.order = Order(gm.graph)

    # Conditions

    def why_not_dead(self, node: fx.Node, old: fx.Node, new: fx.Node | None = None) -> str | None:
        """Return why `node` may not overwrite the dead intermediate `old`, or None.

        `new` is the result with its new content, if the node has several results.
        """
        if self.memory.has_input(old):
            return "its operand may be an input of the graph"
        late = self.memory.later_readers(old, node)
        late = [user for user in late if not self._reads_elsewhere(user, old)]
        if late:
            return f"{late[0].name} still reads the old value"
        return self._why_not(node, old, new or node)

    def why_not_written_back(self, node: fx.Node, old: fx.Node, new: fx.Node, copy: fx.Node) -> str | None:
        """Return why `node` may not write to `old` directly, or None, given that `copy` later copies `new`
        there.
        """
        if not self.memory.is_traced(old):
            return "the fake values do not show which input its operand is a view of"
        if self.memory.is_returned(new):
            return "the new value is returned as a tensor of its own"
        if any(member.target is aten.as_strided.default for member in self.memory.group(new)):
            return "the new value is read with strides of its own"
        touching = self.memory.readers(old)
        for user in touching:
            between = self.is_later(user, node) and self.is_later(copy, user)
            if between and not self._reads_elsewhere(user, old):
                return f"{user.name} still reads the old value"
        rewrites = [user for user in touching if self.is_later(user, copy) and written_by(user)]
        for user in self.memory.readers(new):
            if user is not copy and any(not self.is_later(write, user) for write in rewrites):
                return f"{user.name} reads the new value after {rewrites[0].name} has changed it"
        return self._why_not(node, old, new, copy)

    def _why_not(self, node: fx.Node, old: fx.Node, new: fx.Node, *gone: fx.Node) -> str | None:
        if overlaps_itself(self.memory, old):
            return "elements of its operand may lie on top of each other"
        given = list(flat([list(node.args), list(node.kwargs.values())]))
        if self.memory.reads_otherwise(node, old, old) or sum(value is old for value in given) > 1:
            return "it reads its operand through another argument as well"
        if not self.order.many:
            return None
        for user in (*self.memory.readers(old), *self.memory.readers(new)):
            if user is node or user in gone:
                continue
            before, after = (user, node) if self.is_later(node, user) else (node, user)
            if not self.order.is_before(before, after):
                return f"{user.name} runs on another stream, and no event orders the two nodes"
        return None

    def _reads_elsewhere(self, user: fx.Node, old: fx.Node) -> bool:
        root = self.memory.root(old)
        read = [value for value in user.all_input_nodes if self.memory.root(value) is root]
        return user.op != "output" and all(are_disjoint(value, old) for value in read)

    def is_later(self, a: fx.Node, b: fx.Node) -> bool:
        """Return whether `a` is after `b` in graph order."""
        return self.memory.position[a] > self.memory.position[b]

    def same_layout(self, node: fx.Node, old: fx.Node, strides: bool) -> bool:
        """Return whether the new value has exactly the layout of the old one."""
        new, there = tensor(node), tensor(old)
        if new is None or there is None or new.dtype != there.dtype or new.device != there.device:
            return False
        return same_sizes(new.shape, there.shape) and (
            not strides or (same_sizes(new.stride(), there.stride()) and _has_sure_strides(there))
        )

    # Rewrites

    def overwrite(self, node: fx.Node) -> bool:
        """Rewrite `b = op(a)` to `op_(a)` if `a` is dead; handle scatters too."""
        old = node.args[0] if node.args else None
        variant = in_place_variant(node.target)
        if not isinstance(old, fx.Node) or (variant is None and node.target not in PARTS):
            return False
        if self.memory.has_input(old) or not self.same_layout(node, old, strides=True):
            return False
        if any(equal(size, 0) for size in old.meta["val"].shape):
            # There is nothing to save, and fake tensors without elements may have other strides than real
            # ones.
            return False
        why_not = self.why_not_dead(node, old)
        if why_not is not None:
            self.ctx.skip(node, why_not)
            return False
        self._write_there(node, old, variant)
        return True

    def write_back(self, copy: fx.Node) -> int:
        """Rewrite `copy_(a, op(a))` to `op_(a)`; return how many ops now write in place."""
        target, value = copy.args[0], copy.args[1]
        if not isinstance(value, fx.Node) or (len(copy.args) > 2 and copy.args[2]):
            return 0
        node, reshaped = self.origin(value)
        variant = in_place_variant(node.target)
        if (variant is None and node.target not in PARTS) or not isinstance(node.args[0], fx.Node):
            return 0
        old = node.args[0]
        # Readers propagate strides. If only a part of the value is new (a cache), another layout of a
        # returned value costs less than a full copy in each call.
        strict = reshaped or (len(node.users) > 1 and not _writes_a_part(node))
        if not (
            is_same_view(self.stripped(old), self.stripped(target)) and self.same_layout(node, old, strict)
        ):
            return 0
        if tensor(value) is None or tensor(value).dtype != tensor(target).dtype:  # type: ignore[union-attr]
            return 0
        why_not = self.why_not_written_back(node, old, value, copy)
        if why_not is not None:
            self.ctx.skip(node, why_not)
            return 0
        self.make_strict(old)
        self.erase_copy(copy)
        return 1 + self._write_there(node, old, variant)

    def _write_there(self, node: fx.Node, old: fx.Node, twin: OpOverload | None) -> int:
        if twin is not None:
            node.target = twin
            node.meta["val"] = old.meta["val"]
            self.memory.join(node, old)
            self.refresh(node)
            return 0
        part, source, *rest = old, *node.args[1:]
        with self.graph.inserting_before(node):
            part = self.insert(PARTS[node.target], (old, *rest), dict(node.kwargs), node)
            copy = self.insert(aten.copy_.default, (part, source), {}, node)
        node.replace_all_uses_with(old)
        self.memory.join(node, old)
        self.graph.erase_node(node)
        self.refresh(old)
        return self.write_back(copy)

    def insert(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: fx.Node) -> fx.Node:
        """Insert a node at the graph's insertion point, near `like`, and compute its value."""
        result = self.graph.call_function(target, args, kwargs)
        result.meta["val"] = args[0].meta["val"] if target is aten.copy_.default else _view(result, target)
        origin_keys = ("stack_trace", "nn_module_stack")
        result.meta.update({key: like.meta[key] for key in origin_keys if key in like.meta})
        self.memory.place(result, like)
        self.order.position[result] = self.order.position[like]
        self.order.stream[result] = self.order.stream[like]
        return result

    def refresh(self, node: fx.Node) -> None:
        """Recompute the node's value and its views after the node became a memory location."""
        for user in node.users:
            if user.op != "call_function" or not user.args or user.args[0] is not node or _is_at(user, node):
                continue
            if is_in_place(user):
                user.meta["val"] = node.meta["val"]
            elif user.target in RESHAPES:
                # The location may have strides that `view` would refuse.
                user.target = aten.reshape.default
                user.meta["val"] = _view(user, aten.reshape.default)
            elif is_strict_view(user.target):
                user.meta["val"] = _view(user, user.target)
            else:
                continue
            self.refresh(user)

    def erase_copy(self, copy: fx.Node) -> None:
        """Erase a copy whose value is already in place; readers of the copy read its target."""
        target, value = copy.args[0], copy.args[1]
        copy.replace_all_uses_with(target)  # type: ignore[arg-type]
        self.graph.erase_node(copy)
        self.memory.join(target, value)  # type: ignore[arg-type]

    def finish(self) -> None:
        """Erase views that served a scatter or a copy and have no readers left."""
        for node in reversed(self.graph.nodes):
            is_view = makes_views(node.target)
            if is_view and not node.users:
                self.graph.erase_node(node)
        self.gm.recompile()

    def origin(self, value: fx.Node) -> tuple[fx.Node, bool]:
        """Return the node that allocated the memory, and whether a reshape is on the way there.

        The search passes reshapes and in-place ops. A reshape is a view only as long as the strides do not
        change.
        """
        reshaped = False
        while True:
            reshaped |= is_reshape(value)
            value = self.stripped(value)
            if not is_in_place(value):
                return value, reshaped
            value = value.args[0]  # type: ignore[assignment]

    def stripped(self, node: Any) -> Any:
        """Return the source of reshapes that are certainly views; elements and order are the same."""
        while isinstance(node, fx.Node) and is_reshape(node):
            node = node.args[0]
        return node

    def make_strict(self, node: fx.Node) -> None:
        """Replace reshapes on the write path by `view`, so that a copy fails instead of losing the write."""
        while is_reshape(node):
            node.target = aten.view.default
            node = node.args[0]  # type: ignore[assignment]


def _writes_a_part(node: fx.Node) -> bool:
    """Return whether the op is a scatter or similar: most elements keep their value."""
    words = ("index", "scatter", "masked")
    return node.target in PARTS or any(word in str(node.target) for word in words)


def _has_sure_strides(value: torch.Tensor) -> bool:
    """Return whether eager gives this value the strides of its fake tensor.

    Where a tensor is not contiguous, an op may give a dim of size 1 another stride than the fake op does.
    `cat` and `stack` choose their layout by it.
    """
    has_unit_dims, is_contiguous, expected = False, True, 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        has_unit_dims |= equal(size, 1) or is_unbacked(size)
        is_contiguous &= equal(size, 1) or equal(stride, expected)
        expected = expected * size
    return is_contiguous or not has_unit_dims


def _is_at(view: fx.Node, node: fx.Node) -> bool:
    """Return whether the fake values already show that one is a view of the other."""
    a, b = tensor(view), tensor(node)
    return a is not None and b is not None and storage_id(a) == storage_id(b)


def _view(node: fx.Node, target: Any) -> Any:
    """Compute the fake value of a view."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode([source.meta.get("val") for source in node.all_input_nodes])
    assert mode is not None, "the values of a graph are fake"
    with faking(mode), torch.no_grad():
        return target(*args, **kwargs)


def getitem(node: fx.Node, key: Any) -> fx.Node | None:
    """Return the node that picks one result."""
    found = [user for user in node.users if user.target is operator.getitem and user.args[1] == key]
    return found[0] if found else None


def copy_back(value: fx.Node | None, is_target: Callable[[Any], bool]) -> fx.Node | None:
    """Return the node that copies `value` over the tensor that it was computed from."""
    users = [] if value is None else [user for user in value.users if user.target is aten.copy_.default]
    return next((copy for copy in users if copy.args[1] is value and is_target(copy.args[0])), None)
