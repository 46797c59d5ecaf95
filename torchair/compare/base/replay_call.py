"""Record one call of a graph, with its random state, and run graphs with it node by node."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair.core.errors import first_line
from torchair.engine.interpret import interpret
from torchair.fxgraph.effects import draws
from torchair.fxgraph.placeholders import placeholders
from torchair.ge.graph import Graph, Op
from torchair.ge.host import Host
from torchair.passes.fx.cleanup.lists_to_tensors import MARK as HOST_LIST

Values = dict[str, Any]
"""Value of each node of an FX graph, by node name."""


def copies(args: Sequence[Any]) -> list[Any]:
    """Copy arguments; copies share memory if the arguments do, with the same strides and offsets."""
    plain = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
    if all(arg.layout is torch.strided for arg in plain if isinstance(arg, torch.Tensor)):
        return copy.deepcopy(plain)
    return [frozen(arg) for arg in plain]


def frozen(value: Any) -> Any:
    """Copy the value, so that later writes do not change it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    return value


def random_state(device: torch.device) -> tuple[torch.device, torch.Tensor, torch.Tensor | None]:
    """Return the random state of the host, and of the device if it has one."""
    is_host = device.type == "cpu"
    own = None if is_host else torch.get_device_module(device).get_rng_state(device)
    return device, torch.get_rng_state(), own


def set_random_state(state: tuple[torch.device, torch.Tensor, torch.Tensor | None]) -> None:
    """Restore a random state."""
    device, host, own = state
    torch.set_rng_state(host)
    if own is not None:
        torch.get_device_module(device).set_rng_state(own, device)


@dataclass(frozen=True)
class CallOutcome:
    """Visible result of a call: the outputs and the arguments after it, or the error that it raised."""

    outputs: list[Any] = field(default_factory=list[Any])
    args: list[Any] = field(default_factory=list[Any])
    error: str = ""


class RecordedCall:
    """Arguments of a call and the random state before it; every run starts from both."""

    def __init__(self, args: Sequence[Any], device: torch.device) -> None:
        self.args = copies(args)
        self.device = device
        self.random = random_state(device)

    def run(self, call: Callable[[list[Any]], Any], args: Sequence[Any] | None = None) -> CallOutcome:
        """Run one call on copies; an error is part of the outcome."""
        given = copies(self.args if args is None else args)
        set_random_state(self.random)
        try:
            with torch.no_grad():
                outputs = call(list(given))
        except Exception as error:
            return CallOutcome(error=f"{type(error).__name__}: {first_line(error)}")
        return CallOutcome(frozen(list(outputs)), given)

    def values(self, gm: fx.GraphModule, recorder: type[ValueRecorder] | None = None) -> ValueRecorder:
        """Run an FX graph node by node and keep all its values."""
        run = (recorder or ValueRecorder)(gm)
        set_random_state(self.random)
        with torch.no_grad():
            run.run(*with_lists(gm, copies(self.args)))
        run.values |= dict(zip((node.name for node in placeholders(gm)), self.args, strict=False))
        return run

    def edges(self, graph: Graph) -> dict[str, Any]:
        """Run a GE graph op by op and return the value of each edge, by `<op>:<slot>`."""
        found: dict[str, Any] = {}

        def observe(op: Op, values: Sequence[Any]) -> None:
            if op in mine:
                found.update(
                    {tensor.tensor: frozen(value) for tensor, value in zip(op.outputs, values, strict=True)}
                )

        mine = set(graph.ops)
        set_random_state(self.random)
        interpret(graph, copies(self.args), self.device, observe)
        return found


class ValueRecorder(fx.Interpreter):
    """Run a graph node by node; keep every value as computed, and the random state before draws."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: Values = {}
        self.random: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        if draws(n):
            values = [value for value in self.env.values() if isinstance(value, torch.Tensor)]
            device = next((v.device for v in values if v.device.type != "cpu"), torch.device("cpu"))
            self.random[n.name] = random_state(device)
        value = super().run_node(n)
        if n.op != "output":
            self.values[n.name] = frozen(value)
        return value


UNINITIALIZED = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted")
"""Ops that return uninitialized memory."""


def is_uninitialized(node: fx.Node) -> bool:
    """Return whether a node is uninitialized memory."""
    return str(node.target).split(".")[1:2] in [[name] for name in UNINITIALIZED]


def run_fx(gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return a callable that runs an FX graph."""
    return lambda args: fx.Interpreter(gm).run(*with_lists(gm, args))


def with_lists(gm: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    """Return the arguments, followed by inputs that a pass added and a runner computes from them."""
    made = list(args)
    for node in placeholders(gm)[len(args) :]:
        numbers = [args[value] if kind == "index" else value for kind, value in node.meta[HOST_LIST]]
        made.append(torch.tensor(numbers, dtype=torch.int64, device=node.meta["val"].device))
    return made


def edge_value(value: Any, device: torch.device) -> Any:
    """Return the value of an edge as a tensor, whatever the engine stores."""
    return value.to_tensor(device) if isinstance(value, Host) else value
