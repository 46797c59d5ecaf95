"""Kernels for the very shapes of a recording, compiled in the background while the plain recording serves.

With a build directory, the cache is there, in `static_kernel_compile_outputs/static_kernel_cache`, and beside
it each order leaves a folder with what was ordered and what the compiler said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.backend.service.request import CompileRequest, TensorMetadata, last_line, tensor_metadata_of
from torchair.backend.service.scheduler import NO_LIMITS, SCHEDULER, CompileBudget, CompileTask, Job, Subtask
from torchair.backend.service.torch_state import TorchState
from torchair.capture import PendingProgram
from torchair.capture.base.key import format_key
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.codegen import CodegenOptions
from torchair.codegen.inductor.device_mapping import DeviceMapping
from torchair.core.diagnostics import Diagnostics
from torchair.core.environment import text_of
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, dump_graph, faking, graph_module
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.layout_check import OutputLayouts

LOCAL = "LOCAL_WORLD_SIZE"
OUTPUTS = "static_kernel_compile_outputs"


def outputs_below(build_dir: str | None) -> str:
    """Where things are built if a directory was named."""
    return "" if build_dir is None else os.path.abspath(os.path.join(build_dir, OUTPUTS))


def is_wanted(symbol: int, values: Collection[int] | None, args: Sequence[Any]) -> bool:
    """Is this number among the arguments one of these values? All are, where there are none to pick from."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    return values is None or any(number in values for number in numbers[symbol : symbol + 1])


@dataclass(frozen=True)
class StaticShapeCompiler:
    """Programs for the keys of one graph."""

    gm: fx.GraphModule
    name: str
    how: CodegenOptions
    contract: OutputLayouts
    degradations: Diagnostics
    root: str = ""
    """Of what is built, see `Order`."""
    wanted: Callable[[Sequence[Any]], bool] = lambda args: True
    """Are these arguments worth it?"""
    kinds: tuple[str, ...] = ("inductor",)
    limits: CompileBudget = NO_LIMITS
    at_once: bool = True
    """And not when a key comes again."""

    def __call__(self, key: Hashable, args: Sequence[Any]) -> PendingProgram | None:
        """Start compiling for this key; None when it is not wanted or cannot be sent."""
        if not self.wanted(args):
            return None
        if why := why_not_here():
            self.degradations.add(f"static kernels of {self.name} are not compiled: {why}")
            return None
        title, ground = f"{self.name} {format_key(key)}", DeviceMapping.of(self.gm)
        likes = tensor_metadata_of(args, ground.device_there)
        try:
            made = specialised(ground.graph(self.gm), likes)
        except Exception as error:
            self.degradations.add(f"static kernels for {title} are not compiled: {last_line(str(error))}")
            return None
        how, kinds, around = self.how, self.kinds, TorchState.now()
        task = CompileTask(
            title,
            [
                Subtask(
                    lambda: CompileRequest(
                        dump_graph(made), likes, how, kinds, surroundings=around, root=self.root
                    )
                )
            ],
            lambda built: LayoutEnforcer(
                ground.program(built[0].program), self.contract, (), self.degradations
            ),
            lambda why: self.degradations.add(f"static kernels for {title} are not {why}"),
            self.limits,
        )
        return SCHEDULER.give(Job(task)) if self.at_once else Job(task)


def world_size() -> int:
    """How many processes work together."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if grouped else 1


def why_not_here() -> str:
    """With several processes, each must know how many of them share its machine."""
    world, local = world_size(), text_of(LOCAL)
    if world == 1 or (local.isdecimal() and int(local) > 0 and world % int(local) == 0):
        return ""
    return f"there are {world} processes, and {LOCAL} is {local!r}, not a number that divides them"


def specialised(gm: fx.GraphModule, likes: Sequence[Any]) -> fx.GraphModule:
    """A copy of the graph with these sizes: symbols, and all that is computed from them, are numbers."""
    made = copy_graph(gm)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with faking(mode), torch.no_grad():
        inputs = iter([like.make() if isinstance(like, TensorMetadata) else like for like in likes])
        run = fx.Interpreter(made)
        numbers: dict[fx.Node, Any] = {}
        for node in made.graph.nodes:
            node.args, node.kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda source: numbers.get(source, source)
            )
            if node.op == "output":
                break
            value = next(inputs) if node.op == "placeholder" else run.run_node(node)
            run.env[node] = value
            node.meta = {}
            if isinstance(value, int | float | bool):
                numbers[node] = value
    for node in reversed(list(numbers)):
        if node.op != "placeholder":
            made.graph.erase_node(node)
    constants = {node.target: getattr(made, node.target) for node in made.graph.find_nodes(op="get_attr")}
    made.graph.output_node().meta = {}
    return graph_module(constants, made.graph)
