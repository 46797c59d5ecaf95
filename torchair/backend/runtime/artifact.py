"""The result of a compile as data: what a runner is made of, in this process or another.

A runner has its program's code, the facts of its inputs (roles, keys, symbols with their ranges), the layouts
that it promised, and how it is recorded. All of this can be packed; what cannot (a program that dumps as it
runs, events of this process) is refused by name. Kernels that are compiled for single shapes beside a program
have artefacts of their own.
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
    """Programs in the code tell it too."""
    contract: OutputLayouts | None
    torch: str = str(torch.__version__)
    """Generated code is one version's."""
    recipe: Any = None
    """How a better program is ordered, where nobody had built it by then."""

    @staticmethod
    def of(runner: Runner, recipe: Any = None) -> CompiledArtifact:
        """What a runner was made of; `NotPossible` says why that is no data."""
        compiled = runner.strategy.compiled
        if any(observer.takes_outputs for observer in compiled.observers):
            raise NotPossible(f"{compiled.name} dumps its tensors as it runs")
        promised = _best(runner)
        program, contract = _bare(promised), compiled.contract
        if isinstance(promised, LayoutEnforcer):
            contract = promised.contract
        code = ChainCode.of(program) if isinstance(program, PartitionedProgram) else code_of(program)
        # A pool is this process's.
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
        """The runner: nothing is traced, converted or compiled."""
        if self.torch != torch.__version__:
            what = f"{self.name} was compiled with torch {self.torch}, and this is {torch.__version__}"
            raise NotPossible(what, next="compile it again")
        told, successor = self.degradations, None
        parts: tuple[Runner, ...] | None = None
        if isinstance(self.code, ChainCode):
            program, parts = self.code.chain(self.device, told)
        else:
            program = load(self.code)
            if self.recipe is not None:
                successor = self.recipe.job(self.name, self.code, (self.contract, self.inputs.key), told)
        compiled = CompiledProgram(
            program, self.inputs, self.policy, self.device, self.name, told, self.contract
        )
        return capture(compiled, RunnerOptions(turns=turns, parts=parts, successor=successor))

    def pack(self) -> bytes:
        """For a file, or another process: behind the digest of the rest."""
        data = pack((VERSION, self))
        return hashlib.sha256(data).digest() + data

    @staticmethod
    def unpack(data: bytes) -> CompiledArtifact:
        """What was packed."""
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() != data[:size]:
            raise BadGraph("this is no artefact, or it is damaged: its digest is another")
        match unpack(data[size:]):
            case (version, CompiledArtifact() as artefact) if version == VERSION:
                return artefact
            case _:
                raise BadGraph("this is no artefact of this version", near=f"version {VERSION}")


@dataclass(frozen=True)
class HostStepCode:
    """Ops that the host runs between two recordings."""

    code: Code
    contract: OutputLayouts
    key: tuple[KeyPart, ...]


@dataclass(frozen=True)
class ChainCode:
    """A graph that is recorded in pieces: the result of each, and who gets what."""

    kind: str
    source: str
    steps: tuple[tuple[CompiledArtifact | HostStepCode, PartitionCall], ...]
    outputs: list[tuple[bool, Any]]
    space: int

    @staticmethod
    def of(chain: PartitionedProgram) -> ChainCode:
        """As data."""
        steps = tuple((_piece(step.run), step._replace(run=None)) for step in chain.steps)
        return ChainCode(chain.kind, chain.source, steps, chain.outputs, chain.space)

    def chain(
        self, device: torch.device, degradations: Diagnostics
    ) -> tuple[PartitionedProgram, tuple[Runner, ...]]:
        """The program, and the runners of its pieces, which take turns."""
        turns = LaunchOrder(get_device(device), device)
        steps, parts = list[PartitionCall](), list[Runner]()
        for piece, step in self.steps:
            if isinstance(piece, CompiledArtifact):
                parts.append(piece.runner(turns))
                run: Any = parts[-1]
            else:
                run = LayoutEnforcer(load(piece.code), piece.contract, piece.key, degradations)
            steps.append(step._replace(run=run))
        return PartitionedProgram(steps, self.outputs, self.space, self.kind, self.source), tuple(parts)


def _piece(run: Any) -> CompiledArtifact | HostStepCode:
    if isinstance(run, Runner):
        return CompiledArtifact.of(run)
    assert isinstance(run, LayoutEnforcer), "between recordings, ops are held to their layouts"
    return HostStepCode(code_of(run.program), run.contract, run.key)


def _best(runner: Runner) -> Program:
    """What serves from now on."""
    program, awaited = runner.program, runner.awaited
    better = awaited.peek() if awaited is not None and awaited.is_done.is_set() else None
    return better or (program.program if isinstance(program, SwappableProgram) else program)


def _bare(program: Program) -> Program:
    """What holds a program to its layouts is made anew."""
    return program.program if isinstance(program, LayoutEnforcer) else program
