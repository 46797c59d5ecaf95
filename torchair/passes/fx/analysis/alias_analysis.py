"""Find which values share memory, and which nodes read it when.

Values fall into groups: two values are in one group when one may be a view of the other. The op's schema says
so (`Tensor(a) -> Tensor(a)`), or the fake values have equal storages. A group that contains an input or a
constant is never overwritten unless the graph itself writes it back. Membership in one group means that
values may alias, not that they must: `reshape` may copy. `is_same_view` tests that they must.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.device.memory import storage_id
from torchair.fxgraph.effects import makes_views, returns_views, views_of, written_by

aten = torch.ops.aten

# Readers of sizes and strides, never of data.
METADATA = (
    aten.sym_size.int,
    aten.sym_size.default,
    aten.sym_stride.int,
    aten.sym_stride.default,
    aten.sym_numel.default,
    aten.sym_storage_offset.default,
)
# The same elements in the same order, as a view or, for some of these ops, as a copy.
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
# Ops whose schema declares a view, but which may copy.
MAY_COPY = (aten.reshape.default, aten.contiguous.default, aten.to.dtype, aten.to.device)
# Views whose elements may overlap, or that reach outside their source.
LOOSE_VIEWS = (aten.as_strided.default, aten.unfold.default, aten.expand.default)


class Memory:
    """Group the values of one graph by memory. Positions are those of the nodes at construction."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self._parent: dict[fx.Node, fx.Node] = {}
        self._members: dict[fx.Node, list[fx.Node]] = {}
        # Per group: its inputs, its views that may overlap themselves, its members with readers still to
        # come.
        self._inputs: dict[fx.Node, list[fx.Node]] = {}
        self._loose: dict[fx.Node, bool] = {}
        self._live: dict[fx.Node, dict[fx.Node, None]] = {}
        by_storage: dict[int, fx.Node] = {}
        for node in graph.nodes:
            self.join(node, *views_of(node))
            for storage in _storages(node):
                self.join(by_storage.setdefault(storage, node), node)

    def root(self, node: fx.Node) -> fx.Node:
        """Return the representative of the node's group."""
        if node not in self._parent:
            self._parent[node], self._members[node] = node, [node]
            self._inputs[node] = [node] if node.op in ("placeholder", "get_attr") else []
            self._loose[node] = node.target in LOOSE_VIEWS
            self._live[node] = {node: None}
        while self._parent[node] is not node:
            node = self._parent[node]
        return node

    def join(self, node: fx.Node, *others: fx.Node) -> None:
        """Merge the groups of these nodes."""
        for other in others:
            a, b = self.root(node), self.root(other)
            self._live[a].update({node: None, other: None})
            if a is b:
                continue
            if len(self._members[a]) < len(self._members[b]):
                a, b = b, a
            self._parent[b] = a
            self._members[a] += self._members.pop(b)
            self._inputs[a] += self._inputs.pop(b)
            self._loose[a] |= self._loose.pop(b)
            self._live[a].update(self._live.pop(b))

    def group(self, node: fx.Node) -> list[fx.Node]:
        """Return all values that may share memory with this one, including itself."""
        return self._members[self.root(node)]

    def place(self, new: fx.Node, like: fx.Node) -> None:
        """Register a node that was inserted just before or after `like`."""
        self.position[new] = self.position[like]
        self.join(new, *views_of(new))

    def has_input(self, node: fx.Node) -> bool:
        """Return whether the memory may belong to the caller or to a constant of the graph."""
        return bool(self._inputs[self.root(node)])

    def has_loose_views(self, node: fx.Node) -> bool:
        """Return whether a member of the group may overlap itself or reach outside its source."""
        return self._loose[self.root(node)]

    def is_traced(self, node: fx.Node) -> bool:
        """Return whether the fake values show the alias if the memory is an input's.

        The runner relies on them to know which inputs are written.
        """
        inputs = self._inputs[self.root(node)]
        return (
            not inputs
            or node in inputs
            or bool(set(_storages(node)) & {s for i in inputs for s in _storages(i)})
        )

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Return all nodes that read or write the data of the group. A view does neither; its readers do."""
        found = {user: None for member in self.group(node) for user in member.users}
        return [user for user in found if not reads_no_data(user)]

    def later_readers(self, old: fx.Node, node: fx.Node) -> list[fx.Node]:
        """Return the readers after `node`.

        Query in graph order: members without later readers are forgotten, so that a long chain of writes to
        one place stays cheap.
        """
        root, now = self.root(old), self.position[node]
        later = {m: [u for u in m.users if self.position[u] > now] for m in self._live[root]}
        self._live[root] = {member: None for member, users in later.items() if users}
        return [user for users in later.values() for user in users if not reads_no_data(user)]

    def is_returned(self, node: fx.Node) -> bool:
        """Return whether the graph returns this memory to the caller."""
        return any(user.op == "output" for member in self.group(node) for user in member.users)

    def reads_otherwise(self, node: fx.Node, value: fx.Node, *but: fx.Node) -> bool:
        """Return whether `node` reads the memory of `value` through an argument other than the nodes in
        `but`.
        """
        root = self.root(value)
        return any(self.root(arg) is root for arg in node.all_input_nodes if arg not in but)


def reads_no_data(node: fx.Node) -> bool:
    """Return whether the node reads only sizes, or makes a view, whose readers count instead."""
    if node.target in METADATA or node.target is operator.getitem or is_reshape(node):
        return True
    return makes_views(node.target) and node.target not in MAY_COPY


def is_reshape(node: fx.Node) -> bool:
    """Return whether this is a reshape that is a view here, according to the fake values."""
    if node.target not in RESHAPES:
        return False
    result, source = tensor(node), tensor(node.args[0])
    return result is not None and source is not None and storage_id(result) == storage_id(source)


def is_same_view(a: Any, b: Any) -> bool:
    """Return whether these are certainly the same elements of the same memory.

    That is: one node, or views of one node that cover the same elements in the same order.
    """
    if a is b:
        return True
    x, y = tensor(a), tensor(b)
    if x is None or y is None or storage_id(x) != storage_id(y) or x.dtype != y.dtype:
        return False
    offsets = [x.storage_offset()], [y.storage_offset()]
    if not same_sizes(x.shape, y.shape) or not same_sizes(*offsets):
        return False
    # The stride of a dim of size 1 has no effect.
    steps = [[step for n, step in zip(t.shape, t.stride(), strict=True) if _key(n) != 1] for t in (x, y)]
    return same_sizes(*steps) and view_root(a) is view_root(b)


def view_root(node: fx.Node) -> fx.Node:
    """Return the node that this node is certainly a view of, through views and through in-place ops."""
    while is_reshape(node) or is_strict_view(node.target) or is_in_place(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_in_place(node: fx.Node) -> bool:
    """Return whether the op writes its first argument and returns it."""
    return returns_views(node.target) and bool(node.args) and written_by(node) == [node.args[0]]


def is_strict_view(target: Any) -> bool:
    """Return whether the result is always a view of the first argument (`reshape` is not: it may copy)."""
    if target in MAY_COPY or not makes_views(target):
        return False
    returned = target._schema.returns
    return len(returned) == 1 and str(returned[0].type) == "Tensor"


def tensor(node: Any) -> torch.Tensor | None:
    """Return the node's fake value if it is one strided tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout == torch.strided else None


def _storages(node: fx.Node) -> Iterator[int]:
    value = tensor(node)
    if value is not None:
        yield storage_id(value)


def same_sizes(a: Any, b: Any) -> bool:
    """Compare sizes or strides without asking the shape environment, so that no guard is added."""
    return len(a) == len(b) and all(_key(x) == _key(y) for x, y in zip(a, b, strict=True))


def _key(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def overlaps_itself(memory: Memory, node: fx.Node) -> bool:
    """Return whether one element of memory may appear twice in the value."""
    value = tensor(node)
    if value is None or any(stride == 0 for stride in value.stride() if isinstance(stride, int)):
        return True
    return memory.has_loose_views(node)


def are_disjoint(a: fx.Node, b: fx.Node) -> bool:
    """Return whether two views of one memory certainly have no element in common.

    False where sizes are not known.
    """
    x, y = tensor(a), tensor(b)
    if x is None or y is None:
        return False
    numbers = [*x.shape, *x.stride(), x.storage_offset(), *y.shape, *y.stride(), y.storage_offset()]
    if not all(isinstance(number, int) for number in numbers):
        return False
    if 0 in (*x.shape, *y.shape):
        return True
    (first, last), (start, end) = _span(x), _span(y)
    return last < start or end < first or _disjoint_in_a_dim(x, y)


def _span(x: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return int(x.storage_offset()), int(x.storage_offset()) + reach


def _disjoint_in_a_dim(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether two boxes in the grid that the strides span are disjoint in one dim."""
    if x.stride() != y.stride() or 0 in x.stride():
        return False
    dims = sorted(range(x.dim()), key=lambda dim: -x.stride(dim))
    grid = [x.stride(dim) for dim in dims]
    boxes = []
    for value in (x, y):
        rest, box = int(value.storage_offset()), []
        for dim, stride in zip(dims, grid, strict=True):
            box.append((rest // stride, rest // stride + value.shape[dim] - 1))
            rest %= stride
        inside = all(
            high < outer // stride for (_, high), outer, stride in zip(box[1:], grid, grid[1:], strict=False)
        )
        if not inside or rest:
            return False
        boxes.append(box)
    return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(*boxes, strict=True))
