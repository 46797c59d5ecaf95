"""A graph that is run in pieces: what the host must do, and recordings in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from torchair.core.program import Call
from torchair.fxgraph.ends import placeholders
from torchair.fxgraph.partition import Partition


class Chain:
    """The program that runs the partitions of a graph one after the other. Values are let go of behind the
    last one that reads them.
    """

    _boxed_call = True

    def __init__(
        self, gm: fx.GraphModule, steps: Sequence[tuple[Partition, Call]], kind: str, source: str
    ) -> None:
        self.kind = kind
        self.source = source
        inputs = placeholders(gm)
        given = [node for each, _ in steps for node in each.gives]
        slots = {node: slot for slot, node in enumerate((*inputs, *given))}
        returned: Any = gm.graph.output_node().args[0]
        self._space = len(given)
        self._outputs = [
            (True, slots[item]) if isinstance(item, fx.Node) else (False, item) for item in returned
        ]
        kept = {slot for is_slot, slot in self._outputs if is_slot}
        self._steps: list[tuple[Call, list[int], list[int], list[int]]] = []
        for each, run in reversed(steps):
            takes, gives = [slots[node] for node in each.takes], [slots[node] for node in each.gives]
            last = [slot for slot in (*takes, *gives) if slot not in kept]
            kept.update(last)
            self._steps.insert(0, (run, takes, gives, last))

    def __call__(self, args: list[Any]) -> list[Any]:
        values = [*args, *[None] * self._space]
        args.clear()
        for run, takes, gives, last in self._steps:
            results = run([values[slot] for slot in takes])
            for slot, result in zip(gives, results, strict=True):
                values[slot] = result
            results = result = None
            for slot in last:
                values[slot] = None
        return [values[item] if is_slot else item for is_slot, item in self._outputs]
