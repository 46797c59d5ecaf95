"""A graph that runs in partitions: ops that need the CPU, and recordings between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import fx

from torchair.core.program import Call
from torchair.fxgraph.partition import Partition
from torchair.fxgraph.placeholders import placeholders


class PartitionCall(NamedTuple):
    """One partition: its callable, the slots it reads and writes, and the slots it is the last to use."""

    run: Any
    takes: list[int]
    gives: list[int]
    last: list[int]


@dataclass(frozen=True)
class PartitionedProgram:
    """A program that runs the partitions of a graph in order. Each value is released after its last use."""

    steps: list[PartitionCall]
    outputs: list[tuple[bool, Any]]
    """Each output: a slot, or a constant."""
    space: int
    """Number of slots in addition to those of the arguments."""
    kind: str
    source: str
    _boxed_call = True

    @staticmethod
    def of(
        gm: fx.GraphModule, runs: Sequence[tuple[Partition, Call]], kind: str, source: str
    ) -> PartitionedProgram:
        """Build the program from the partitions of a graph and their callables."""
        inputs = placeholders(gm)
        given = [node for each, _ in runs for node in each.gives]
        slots = {node: slot for slot, node in enumerate((*inputs, *given))}
        returned: Any = gm.graph.output_node().args[0]
        outputs = [(True, slots[item]) if isinstance(item, fx.Node) else (False, item) for item in returned]
        kept = {slot for is_slot, slot in outputs if is_slot}
        steps: list[PartitionCall] = []
        for each, run in reversed(runs):
            takes, gives = [slots[node] for node in each.takes], [slots[node] for node in each.gives]
            last = [slot for slot in (*takes, *gives) if slot not in kept]
            kept.update(last)
            steps.insert(0, PartitionCall(run, takes, gives, last))
        return PartitionedProgram(steps, outputs, len(given), kind, source)

    @cached_property
    def _boxed(self) -> list[PartitionCall]:
        """The partitions with the fastest callable of each."""
        return [step._replace(run=getattr(step.run, "boxed", step.run)) for step in self.steps]

    def __call__(self, args: list[Any]) -> list[Any]:
        values = [*args, *[None] * self.space]
        args.clear()
        for run, takes, gives, last in self._boxed:
            results = run([values[slot] for slot in takes])
            for slot, result in zip(gives, results, strict=True):
                values[slot] = result
            results = result = None
            for slot in last:
                values[slot] = None
        return [values[item] if is_slot else item for is_slot, item in self.outputs]
