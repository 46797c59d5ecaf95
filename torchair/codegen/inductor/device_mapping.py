"""Graphs of a device that another device backs: compiled for the backing device, and run on the same
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from torchair.codegen.base import graph_prep as graph
from torchair.codegen.base.programs import WrapperCode
from torchair.core.errors import NotPossible
from torchair.core.program import Code, Program, ProgramWrapper, code_of
from torchair.core.torch_private.fake.fake_tensors import disable_modes, fake_tensor_prop
from torchair.core.torch_private.operators.schemas import OpOverload, has_kernel
from torchair.devices import Backing, get_device
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.fake_values import device_of, is_on_cpu, moves_between_devices, tensors_of
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.placeholders import placeholders, returned
from torchair.ops.numerics.self_returning import DIRECT

Build = Callable[[fx.GraphModule, Sequence[Any]], Program]


def _move(gm: fx.GraphModule, backing: Backing) -> fx.GraphModule:
    """Return a copy of the graph for the backing device, without fake values.

    Raises:
        NotPossible: if the copy would behave differently.
    """
    home = device_of(gm)
    kind = home.type
    for node in gm.graph.nodes:
        _check(node, home)
    if any(is_on_cpu(value) for node in _outputs(gm) for value in tensors_of(node)):
        raise NotPossible("an output of the graph is on the CPU, which its backing device cannot produce")
    made = copy_graph(gm)
    for node in made.graph.nodes:
        node.meta = {}
        node.args, node.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda value: _moved(value, kind, backing.device)
        )  # type: ignore[assignment]
        if node.op == "get_attr":
            _share_constant(made, str(node.target), kind, backing)
    made.recompile()
    return made


def _outputs(gm: fx.GraphModule) -> list[fx.Node]:
    return [value for value in returned(gm) if isinstance(value, fx.Node)]


def _check(node: fx.Node, home: torch.device) -> None:
    if node.op == "call_function" and moves_between_devices(node, home):
        raise NotPossible(f"{node.name} copies between devices, which the backing device cannot do")
    for target in (node.target, *node.args):  # some ops have op arguments, for example auto_functionalized
        if not isinstance(target, OpOverload) or target.namespace == "aten" or target in DIRECT:
            continue
        if has_kernel(target, "PrivateUse1"):
            raise NotPossible(
                f"{target} has its own kernel for {home.type}, which the backing device cannot call"
            )


def _moved(value: Any, kind: str, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) and value.type == kind else value


def _share_constant(gm: fx.GraphModule, name: str, kind: str, backing: Backing) -> None:
    value = graph.attribute(gm, name)
    if isinstance(value, torch.Tensor) and value.device.type == kind:
        with disable_modes():
            setattr(gm, name, backing.show(value))


def _moved_inputs(inputs: Sequence[Any], gm: fx.GraphModule, backing: Backing) -> list[Any]:
    """Return fake inputs on the backing device, and compute the fake values of the moved graph."""
    mode = graph.fake_mode_of(gm, inputs)
    made = [
        _tensor_on(value, backing.device) if isinstance(value, torch.Tensor) else value for value in inputs
    ]
    fake_tensor_prop(gm, mode, made)
    return made


def _tensor_on(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    with value.fake_mode:  # type: ignore[attr-defined]
        first = value.storage_offset()
        last = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        if isinstance(first, int) and first == 0:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        memory = torch.empty(first + last + 1, dtype=value.dtype, device=device)
        return memory.as_strided(value.shape, value.stride(), first)


def written_inputs(gm: fx.GraphModule) -> tuple[int, ...]:
    """Return the indices of the inputs that the graph writes."""
    places = {node: place for place, node in enumerate(placeholders(gm))}
    written = (root_of(value)[0] for node in gm.graph.nodes for value in written_by(node))
    return tuple(sorted({places[node] for node in written if node in places}))


class MappedProgram(ProgramWrapper):
    """A program of the backing device that is called with tensors of this device."""

    def __init__(self, program: Program, device: torch.device, written: tuple[int, ...]) -> None:
        self.program = program
        self._device, self._written = device, written
        backing = get_device(device).backing
        assert backing is not None, "only graphs of a backed device are moved"
        self._run = backing.bound(program, written, device)

    @property
    def code(self) -> Code:
        return WrapperCode(MappedProgram, code_of(self.program), (self._device, self._written))

    @property
    def standalone(self) -> None:
        """Always None: a standalone module would run on the backing device."""

    def __call__(self, args: list[Any]) -> list[Any]:
        return self._run(args)


@dataclass(frozen=True)
class DeviceMapping:
    """Where a graph is compiled: for its own device, or for the device that backs it."""

    device: torch.device
    backing: Backing | None
    written: tuple[int, ...]
    """Indices of inputs that the graph writes."""

    @staticmethod
    def of(gm: fx.GraphModule) -> DeviceMapping:
        """Return the mapping of a graph with fake values."""
        device = device_of(gm)
        return DeviceMapping(device, get_device(device).backing, written_inputs(gm))

    def graph(self, gm: fx.GraphModule) -> fx.GraphModule:
        """Return a copy of the graph for the compile device, without fake values."""
        if self.backing is not None:
            return _move(gm, self.backing)
        made = copy_graph(gm)
        for node in made.graph.nodes:
            node.meta = {}
        return made

    def device_there(self, device: torch.device) -> torch.device:
        """Return the compile device for a tensor on this device."""
        return self.backing.device if self.backing is not None and device.type == self.device.type else device

    def program(self, program: Program) -> Program:
        """Return a program for tensors of the graph's own device."""
        return program if self.backing is None else MappedProgram(program, self.device, self.written)

    def build(self, gm: fx.GraphModule, inputs: Sequence[Any], build: Build) -> Program:
        """Compile the graph with `build` on the compile device."""
        if self.backing is None:
            return build(gm, inputs)
        moved = _move(gm, self.backing)
        return self.program(build(moved, _moved_inputs(inputs, moved, self.backing)))
