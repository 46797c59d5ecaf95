"""Serialize the result of a compile, so that this or another process can build a runner from it.

An artifact holds the program's code, the facts of its inputs (kinds, keys, symbols with their ranges), the
required output layouts, and the recording policy. Anything that cannot be serialized (a program that dumps as
it runs, events of this process) raises `NotPossible`. Kernels that are compiled for single shapes in addition
to a program have artifacts of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchair.capture import (
    CompiledProgram,
    InputInfo,
    LaunchOrder,
    PartitionedProgram,
    Policy,
    Runner,
    RunnerOptions,
    capture,
)
from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.capture.base.pending_program import SwappableProgram
from torchair.capture.strategies.chain import PartitionCall
from torchair.codegen import load
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadGraph, NotPossible
from torchair.core.program import Code, Program, code_of
from torchair.core.storage.serialization import pack, unpack
from torchair.devices import get_device
from torchair.fxgraph.layout_check import OutputLayouts

VERSION = 2


@dataclass(frozen=True)
class CompiledArtifact:
    """One compiled graph."""

    code: Code | ChainCode
    inputs: InputInfo
    policy: Policy
    device: torch.device
    name: str
    degradations: Diagnostics
    """Programs in the code report to it as well."""
    contract: OutputLayouts | None
    torch: str = str(torch.__version__)
    """Generated code is valid for one torch version only."""
    recipe: Any = None
    """A deferred request for the optimized program, if that was not built when the artifact was written."""

    @staticmethod
    def of(runner: Runner, recipe: Any = None) -> CompiledArtifact:
        """Return the artifact of a runner; raise `NotPossible` if it cannot be serialized."""
        compiled = runner.strategy.compiled
        if any(observer.takes_outputs for observer in compiled.observers):
            raise NotPossible(
                f"{compiled.name} cannot be serialized: it dumps its tensors while it runs",
                next="compile it without tensor dumps",
            )
        enforced = _best(runner)
        program, contract = _without_enforcer(enforced), compiled.contract
        if isinstance(enforced, LayoutEnforcer):
            contract = enforced.contract
        code = ChainCode.of(program) if isinstance(program, PartitionedProgram) else code_of(program)
        # A memory pool belongs to this process.
        policy = replace(compiled.policy, pool=None)
        return CompiledArtifact(
            code,
            compiled.inputs,
            policy,
            compiled.device,
            compiled.name,
            compiled.degradations,
            contract,
            recipe=recipe,
        )

    def runner(self, turns: LaunchOrder | None = None) -> Runner:
        """Build the runner without tracing, converting or compiling anything."""
        if self.torch != torch.__version__:
            what = f"{self.name} was compiled with torch {self.torch}, but this is torch {torch.__version__}"
            raise NotPossible(what, next="compile it again")
        degradations, successor = self.degradations, None
        parts: tuple[Runner, ...] | None = None
        if isinstance(self.code, ChainCode):
            program, parts = self.code.chain(self.device, degradations)
        else:
            program = load(self.code)
            if self.recipe is not None:
                layouts = self.contract, self.inputs.key
                successor = self.recipe.job(self.name, self.code, layouts, degradations)
        compiled = CompiledProgram(
            program, self.inputs, self.policy, self.device, self.name, degradations, self.contract
        )
        return capture(compiled, RunnerOptions(turns=turns, parts=parts, successor=successor))

    def pack(self) -> bytes:
        """Serialize the artifact for a file or another process; a SHA-256 digest comes first."""
        data = pack((VERSION, self))
        return hashlib.sha256(data).digest() + data

    @staticmethod
    def unpack(data: bytes) -> CompiledArtifact:
        """Return the artifact that `pack` serialized; raise `BadGraph` if the data are invalid."""
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() != data[:size]:
            raise BadGraph("invalid or corrupted artifact: checksum mismatch", next="compile the graph again")
        match unpack(data[size:]):
            case (version, CompiledArtifact() as artifact) if version == VERSION:
                return artifact
            case _:
                raise BadGraph(
                    "the artifact was written by another version of torchair",
                    near=f"artifact version {VERSION}",
                    next="compile the graph again",
                )


@dataclass(frozen=True)
class HostStepCode:
    """The code of ops that run on the host between two recordings."""

    code: Code
    contract: OutputLayouts
    key: tuple[KeyPart, ...]


@dataclass(frozen=True)
class ChainCode:
    """A partitioned graph: the artifact of each partition, and how values pass between them."""

    kind: str
    source: str
    steps: tuple[tuple[CompiledArtifact | HostStepCode, PartitionCall], ...]
    outputs: list[tuple[bool, Any]]
    space: int

    @staticmethod
    def of(chain: PartitionedProgram) -> ChainCode:
        """Return the serializable form of a partitioned program."""
        steps = tuple((_partition_code(step.run), step._replace(run=None)) for step in chain.steps)
        return ChainCode(chain.kind, chain.source, steps, chain.outputs, chain.space)

    def chain(
        self, device: torch.device, degradations: Diagnostics
    ) -> tuple[PartitionedProgram, tuple[Runner, ...]]:
        """Build the program and the runners of its partitions, which share one launch order."""
        turns = LaunchOrder(get_device(device), device)
        steps, parts = list[PartitionCall](), list[Runner]()
        for partition, step in self.steps:
            if isinstance(partition, CompiledArtifact):
                parts.append(partition.runner(turns))
                run: Any = parts[-1]
            else:
                run = LayoutEnforcer(load(partition.code), partition.contract, partition.key, degradations)
            steps.append(step._replace(run=run))
        return PartitionedProgram(steps, self.outputs, self.space, self.kind, self.source), tuple(parts)


def _partition_code(run: Any) -> CompiledArtifact | HostStepCode:
    if isinstance(run, Runner):
        return CompiledArtifact.of(run)
    assert isinstance(run, LayoutEnforcer), "ops between recordings run in a LayoutEnforcer"
    return HostStepCode(code_of(run.program), run.contract, run.key)


def _best(runner: Runner) -> Program:
    """Return the optimized program if it is ready, otherwise the current one."""
    program, awaited = runner.program, runner.awaited
    optimized = awaited.peek() if awaited is not None and awaited.is_done.is_set() else None
    return optimized or (program.program if isinstance(program, SwappableProgram) else program)


def _without_enforcer(program: Program) -> Program:
    """Strip the `LayoutEnforcer`, which is rebuilt at load time."""
    return program.program if isinstance(program, LayoutEnforcer) else program
