"""Split a graph that contains host ops into recordings and host work.

Most host ops are found in the graph (`capture/base/host_ops.py`). An op that breaks a recording at run time
is cut out then, and the rest is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from torchair.backend.settings.settings import PATIENCE
from torchair.capture import (
    CannotRecord,
    CompiledProgram,
    LaunchOrder,
    PartitionedProgram,
    Policy,
    Runner,
    RunnerOptions,
    capture,
    inputs_of,
)
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.core.diagnostics import Diagnostics
from torchair.core.program import Program
from torchair.core.source_location import source_of
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.devices import get_device
from torchair.engine.trace_cache import separate_all
from torchair.fxgraph.edit import redirect_writes
from torchair.fxgraph.layout import layouts_of, new_values, root_of
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.partition import Partition, partition
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import Binding, unbacked_in
from torchair.ops.streams.scope_analysis import drop_scopes

RUN_OPS = ("eager", "fx")
"""Kinds of programs that run the ops of the graph, one by one."""

Make = Callable[[fx.GraphModule, list[Any], tuple[int, ...], bool], Program]
"""A program for a graph with these fake inputs, of which these are static; whether for the host."""


@dataclass(frozen=True)
class PartitionedRunner:
    """What the pieces of one graph have in common."""

    make: Make
    policy: Policy
    fake_mode: FakeTensorMode
    device: torch.device
    name: str
    guarded: bool
    arguments: tuple[str, ...] = ()
    degradations: Diagnostics = field(default_factory=Diagnostics)

    def chain(
        self, gm: fx.GraphModule, hosts: Mapping[fx.Node, str], static: tuple[int, ...]
    ) -> tuple[PartitionedProgram, tuple[Runner, ...]]:
        """The program that runs `gm` in pieces, and the runners of those that are recorded; `hosts` are the
        calls that need the host, and why.
        """
        separate_all(gm, self.fake_mode)
        if drop_scopes(gm):
            first, reason = next(iter(hosts.items()))
            what = f"scopes have no effect where a graph is run in pieces: {first.target} {reason}"
            self.degradations.add(what, at=source_of(first))
        # What the host makes is elsewhere in every call: a piece that wrote it could hardly be recorded.
        redirect_writes(gm, hosts.keys(), self.fake_mode)
        fixed = {node for place, node in enumerate(placeholders(gm)) if place in static}
        returned = {root_of(node)[0] for node in gm.graph.output_node().all_input_nodes}
        steady = set[fx.Node]()  # at one address in all calls
        partitions = partition(gm, hosts.__contains__)
        # Pieces run one after the other: one stream to capture on, and the workspaces that belong to it.
        turns = LaunchOrder(get_device(self.device), self.device)
        programs = [self.make(each.gm, each.fakes, _places(each, fixed), each.on_host) for each in partitions]
        of_pieces = [program for program, each in zip(programs, partitions, strict=True) if not each.on_host]
        is_eager = all(program.kind in RUN_OPS for program in of_pieces)
        runs, parts = list[Any](), list[Runner]()
        settled = 0  # calls until all pieces so far are recorded, and their results where they stay
        for each, program in zip(partitions, programs, strict=True):
            if each.on_host:
                runs.append(self._on_host(each, program, is_eager))
                continue
            own, passed = _places(each, fixed), _places(each, steady)
            # A size that data decides may never come again.
            patience = PATIENCE if unbacked_in(each.fakes) else self.policy.patience
            waits = replace(self.policy, patience=patience, warm_up=settled if passed else 0)
            settled = max(settled, waits.warm_up + patience + 1)
            parts.append(self._runner(each, program, own, passed, waits, turns, len(parts)))
            runs.append(parts[-1])
            # What the caller may hold is made elsewhere then, and so is what is copied out on every call.
            if not self.policy.clone_output:
                steady.update(node for node in each.gives if root_of(node)[0] not in returned)
        self._tell(partitions, hosts)
        kind = parts[0].program.kind if parts else "eager"
        source = "\n".join(program.source for program in programs)
        return PartitionedProgram.of(gm, list(zip(partitions, runs, strict=True)), kind, source), tuple(parts)

    def _runner(
        self,
        each: Partition,
        program: Program,
        static: tuple[int, ...],
        passed: tuple[int, ...],
        policy: Policy,
        turns: LaunchOrder,
        number: int,
    ) -> Runner:
        facts = inputs_of(
            each.gm, each.fakes, static, guarded=self.guarded, arguments=self.arguments, passed=passed
        )
        contract = _contract(each, is_eager=program.kind in RUN_OPS)
        name = f"{self.name}_{number}"
        return capture(
            CompiledProgram(program, facts, policy, self.device, name, self.degradations, contract),
            RunnerOptions(split=self.split(each.gm, program, static), turns=turns),
        )

    def _on_host(self, each: Partition, program: Program, is_eager: bool) -> LayoutEnforcer:
        """Ops on the host, held to the layouts that the pieces behind them were compiled for; where these run
        op by op, any will do.
        """
        facts = inputs_of(each.gm, each.fakes, ())
        return LayoutEnforcer(program, _contract(each, is_eager=is_eager), facts.key, self.degradations)

    def split(
        self,
        gm: fx.GraphModule,
        program: Program,
        static: tuple[int, ...],
        contract: OutputLayouts | None = None,
    ) -> Callable[[CannotRecord], Runner | None]:
        """What takes over where an op breaks the recording of `gm`."""

        def split(error: CannotRecord) -> Runner | None:
            calls = [node for node in gm.graph.nodes if _runs(node, error.op)]
            # What an op of ATen's cannot do with these arguments it may with others; another op never can.
            is_one = program.kind == "eager" and error.op.namespace in ("aten", "prims")
            if is_one and error.place < len(calls):
                calls = calls[error.place : error.place + 1]
            if not calls:
                return None
            reason = f"cannot be recorded ({error})"
            chain, parts = self.chain(gm, dict.fromkeys(calls, reason), static)
            fakes = [node.meta["val"] for node in placeholders(gm)]
            facts = inputs_of(gm, fakes, static, guarded=self.guarded, arguments=self.arguments)
            whole = CompiledProgram(
                chain, facts, self.policy, self.device, self.name, self.degradations, contract
            )
            return capture(whole, RunnerOptions(parts=parts))

        return split

    def _tell(self, partitions: list[Partition], hosts: Mapping[fx.Node, str]) -> None:
        """What the host does before the one recording, or behind it, splits nothing."""
        recorded = [place for place, each in enumerate(partitions) if not each.on_host]
        if len(recorded) < 2:
            return
        inner = partitions[recorded[0] : recorded[-1]]
        between = {node.name for each in inner if each.on_host for node in each.gm.graph.nodes}
        for node, reason in hosts.items():
            if node.name in between or not between:
                what = f"a graph is recorded in {len(recorded)} pieces: {node.target} {reason}"
                self.degradations.add(what, at=source_of(node))


def _runs(node: fx.Node, op: OpOverload) -> bool:
    """Is this a call of the op, of its twin that writes in place or into `out`, or of something around it?"""
    target = node.target
    if node.op != "call_function" or target is op:
        return target is op
    if isinstance(target, OpOverload):
        name, other = target._schema.name, op._schema.name
        return name.removesuffix("_") == other.removesuffix("_")
    return op in node.args


def _contract(each: Partition, *, is_eager: bool) -> OutputLayouts:
    """What the next partition counts on."""
    written = tuple(place for place, _ in new_values(each.gm))
    return OutputLayouts(layouts_of(each.gm), Binding(each.fakes), written, is_eager=is_eager)


def _places(each: Partition, nodes: Container[fx.Node]) -> tuple[int, ...]:
    """Which of its inputs are among these nodes."""
    return tuple(place for place, node in enumerate(each.takes) if node in nodes)
