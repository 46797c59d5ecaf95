"""Kernels for the shapes of one recording, compiled in the background while a dynamic recording serves.

With a build directory, the kernel cache is `static_kernel_compile_outputs/static_kernel_cache` in it. Next to
the cache, each request has a directory with the request and the compiler's output.
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
    """Return the output directory below the build directory; empty if there is none."""
    return "" if build_dir is None else os.path.abspath(os.path.join(build_dir, OUTPUTS))


def is_wanted(symbol: int, values: Collection[int] | None, args: Sequence[Any]) -> bool:
    """Whether the int argument at position `symbol` has one of these values; True if `values` is None."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    return values is None or any(number in values for number in numbers[symbol : symbol + 1])


@dataclass(frozen=True)
class StaticShapeCompiler:
    """Compile programs for single keys of one graph in the background."""

    gm: fx.GraphModule
    name: str
    how: CodegenOptions
    contract: OutputLayouts
    degradations: Diagnostics
    root: str = ""
    """The build directory, see `CompileRequest`."""
    wanted: Callable[[Sequence[Any]], bool] = lambda args: True
    """Whether to compile for these arguments."""
    kinds: tuple[str, ...] = ("inductor",)
    limits: CompileBudget = NO_LIMITS
    at_once: bool = True
    """Whether to submit at the first call of a key, instead of a later one."""

    def __call__(self, key: Hashable, args: Sequence[Any]) -> PendingProgram | None:
        """Create the compile job for this key; None if the key is not selected or cannot be serialized."""
        if not self.wanted(args):
            return None
        if why := unsupported_reason():
            self.degradations.add(f"static kernels of {self.name} are not compiled: {why}")
            return None
        title, ground = f"{self.name} {format_key(key)}", DeviceMapping.of(self.gm)
        specs = tensor_metadata_of(args, ground.device_there)
        try:
            gm = specialised(ground.graph(self.gm), specs)
        except Exception as error:
            self.degradations.add(f"static kernels for {title} are not compiled: {last_line(str(error))}")
            return None
        how, kinds, state = self.how, self.kinds, TorchState.now()
        task = CompileTask(
            title,
            [
                Subtask(
                    lambda: CompileRequest(
                        dump_graph(gm), specs, how, kinds, surroundings=state, root=self.root
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
    """Return the number of processes of `torch.distributed`; 1 if it is not initialized."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if grouped else 1


def unsupported_reason() -> str:
    """Return why static kernels cannot be compiled: with several processes, `LOCAL_WORLD_SIZE` must say how
    many of them share this machine.
    """
    world, local = world_size(), text_of(LOCAL)
    if world == 1 or (local.isdecimal() and int(local) > 0 and world % int(local) == 0):
        return ""
    return f"there are {world} processes, but {LOCAL} is {local!r}; set it to a number that divides {world}"


def specialised(gm: fx.GraphModule, specs: Sequence[Any]) -> fx.GraphModule:
    """Copy the graph for these sizes: symbols, and values computed from them, become constants."""
    copy = copy_graph(gm)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with faking(mode), torch.no_grad():
        inputs = iter([spec.make() if isinstance(spec, TensorMetadata) else spec for spec in specs])
        run = fx.Interpreter(copy)
        numbers: dict[fx.Node, Any] = {}
        for node in copy.graph.nodes:
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
            copy.graph.erase_node(node)
    constants = {node.target: getattr(copy, node.target) for node in copy.graph.find_nodes(op="get_attr")}
    copy.graph.output_node().meta = {}
    return graph_module(constants, copy.graph)
