"""Order ops so that every op comes after the ops it reads or depends on, by a strategy among valid orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torchair.core.errors import BadGraph
from torchair.ge.graph import OUTPUT_TYPE, Graph, Op

Placed = dict[Op, bool]
"""The ops placed so far, in order."""


def needs(op: Op) -> Iterator[Op]:
    """Yield the ops that must run before this one: producers of its inputs, then its control dependencies."""
    for slot in op.slots:
        if slot.tensor is not None:
            yield slot.tensor.op
    yield from op.after


def first_misplaced(graph: Graph) -> tuple[Op, Op] | None:
    """Return the first op that comes before something it needs, and that; None when all are in order."""
    seen: set[Op] = set()
    for op in graph.ops:
        for before in needs(op):
            if before not in seen:
                return op, before
        seen.add(op)
    return None


def sort_ops(graph: Graph) -> bool:
    """Sort the ops into an executable order, keeping the current one if it is; return whether any moved."""
    if first_misplaced(graph) is None:
        return False
    placed: Placed = {}
    for root in graph.ops:
        _place(root, placed)
    graph.ops = list(placed)
    return True


def _place(root: Op, placed: Placed) -> None:
    """Place an op depth first without recursion: graphs are thousands of ops deep."""
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
            raise BadGraph("the graph has a dependency cycle", got=" needs ".join(circle))
        else:
            path.append((following, needs(following)))
            open_ops.add(following)


def _as_ready(ops: Sequence[Op], placed: Placed, *, last_first: bool) -> None:
    """Place ops as they become ready.

    BFS: the op that could run first comes first. DFS: the op that the previous one made ready comes first.
    """
    inside = set(ops)
    waits_for = {op: {before for before in needs(op) if before in inside} for op in ops}
    readers: dict[Op, list[Op]] = {op: [] for op in ops}
    for op, befores in waits_for.items():
        for before in befores:
            readers[before].append(op)
    step = -1 if last_first else 1
    ready = deque([op for op in ops if not waits_for[op]][::step])
    while ready:
        op = ready.pop() if last_first else ready.popleft()
        placed[op] = True
        for reader in readers[op]:
            waits_for[reader].discard(op)
        ready.extend([reader for reader in readers[op] if not waits_for[reader]][::step])


def _before_readers(ops: Sequence[Op], placed: Placed) -> None:
    """RDFS: place ops from the ends backwards, so that each op comes shortly before its first reader."""
    read = {before for op in ops for before in needs(op)}
    for end in ops:
        if end not in read:
            _place(end, placed)


def _as_converted(ops: Sequence[Op], placed: Placed) -> None:
    """StableRDFS: ops of the model keep their order; ops that passes created go before their readers."""
    results = [op for op in ops if op.origin is None and op.type != OUTPUT_TYPE]
    for op in (*(op for op in ops if op not in set(results)), *results):
        _place(op, placed)


STRATEGIES: dict[str, Callable[[Sequence[Op], Placed], None]] = {
    "BFS": partial(_as_ready, last_first=False),
    "DFS": partial(_as_ready, last_first=True),
    "RDFS": _before_readers,
    "StableRDFS": _as_converted,
}
"""How ops are placed whose dependencies are among them or already placed."""
