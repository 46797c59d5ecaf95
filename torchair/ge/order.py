"""The order of ops: every op stands after the ops it reads or waits for."""

from __future__ import annotations

from collections.abc import Iterator

from torchair.core.errors import BadGraph
from torchair.ge.graph import Graph, Op


def needs(op: Op) -> Iterator[Op]:
    """The ops that must run before this one: producers of its inputs, then those it waits for."""
    for slot in op.slots:
        if slot.tensor is not None:
            yield slot.tensor.op
    yield from op.after


def out_of_place(graph: Graph) -> tuple[Op, Op] | None:
    """The first op that stands before something it needs, and that; None when all are in order."""
    seen: set[Op] = set()
    for op in graph.ops:
        for before in needs(op):
            if before not in seen:
                return op, before
        seen.add(op)
    return None


def sort_ops(graph: Graph) -> bool:
    """Bring the ops into an order in which they can run, keeping theirs where it does; says if any moved."""
    if out_of_place(graph) is None:
        return False
    placed: dict[Op, bool] = {}
    for root in graph.ops:
        _place(root, placed)
    graph.ops = list(placed)
    return True


def _place(root: Op, placed: dict[Op, bool]) -> None:
    """Depth first without recursion: graphs are thousands of ops deep."""
    if root in placed:
        return
    path = [(root, needs(root))]
    open_ops = {root}
    while path:
        op, waiting = path[-1]
        following = next((before for before in waiting if before not in placed), None)
        if following is None:
            path.pop()
            open_ops.discard(op)
            placed[op] = True
        elif following in open_ops:
            names = [entry.name for entry, _ in path]
            circle = names[names.index(following.name) :] + [following.name]
            raise BadGraph("ops wait for each other in a circle", got=" needs ".join(circle))
        else:
            path.append((following, needs(following)))
            open_ops.add(following)
