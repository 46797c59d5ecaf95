"""Infer the metadata of all tensors in a graph from a file, including subgraphs.

Before anything is computed, tensors that need more memory than the machine has are rejected.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchair.core.errors import AirError, BadGraph, first_line
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.engine.infer import inference as inference_for
from torchair.engine.kernels.control import WHILE
from torchair.fxgraph.layout import layout_of
from torchair.fxgraph.symbols import hint
from torchair.ge.builder.random_state import FROM_GENERATOR
from torchair.ge.builder.torch_kernel_binding import skipped
from torchair.ge.graph import (
    ArgumentFeed,
    Graph,
    Op,
    PackFeed,
    RandomFeed,
    TensorResult,
    describe,
)
from torchair.ge.host import Host, host_dtype

# Ops whose second input determines the number of digits of the result.
_LONG = ("Pow", "LeftShift")
MOST_BITS = 64


class TooLarge(BadGraph):
    """A graph cannot run in any way, for example because a tensor exceeds the memory."""


def infer_shapes(graph: Graph, args: Sequence[Any], mode: FakeTensorMode, device: torch.device) -> None:
    """Infer the metadata of all tensors of a graph that is called with these fake arguments."""
    for op in graph.inputs:
        match graph.feeds[op.name]:
            case ArgumentFeed(index) if isinstance(args[index], torch.Tensor):
                op.outputs[0].meta = args[index]
            case ArgumentFeed(index):
                op.outputs[0].meta = Host(args[index], host_dtype(args[index]))
            case PackFeed(indices):
                op.outputs[0].meta = Host(tuple(args[index] for index in indices), torch.int64)
            case RandomFeed(count):
                op.outputs[0].meta = Host((FROM_GENERATOR,) * count)
    inference = _ShapeInference(graph.subgraphs, mode, device)
    inference.run(graph)
    for result in graph.results:
        layout = result.layout if isinstance(result, TensorResult) else None
        if layout is not None and not layout.is_example:
            pairs = zip(layout.sizes, layout.strides, strict=True)
            extent = layout.offset + sum((hint(size) - 1) * hint(step) for size, step in pairs) + 1
            inference.check_bytes(f"{graph.name} returns", extent * layout.dtype.itemsize, str(layout.sizes))


class _ShapeInference:
    def __init__(self, parts: Mapping[str, Graph], mode: FakeTensorMode, device: torch.device) -> None:
        self._parts, self._mode, self._device = parts, mode, device
        self._infer: Callable[[Op], None] = inference_for(mode, device)
        self._limit = memory_of_machine(device)

    def run(self, graph: Graph) -> None:
        without = skipped(graph)
        for op in [op for op in graph.ops if op not in without]:
            try:
                _check_numbers(op)
                if op.subgraphs:
                    self._control(op)
                else:
                    self._infer(op)
            except AirError as error:
                raise TooLarge(f"{op.name} ({op.type}): {error.what}", **error.details) from error
            except Exception as error:
                inputs = [f"{slot.name} {describe(slot.tensor.meta)}" for slot in op.slots if slot.tensor]
                what = f"the kernel of {op.type} failed on {op.name}: {first_line(error)}"
                raise TooLarge(what, got=", ".join(inputs)) from error
            self._check_size(op)

    def _check_size(self, op: Op) -> None:
        for output in op.outputs:
            meta = output.meta
            if isinstance(meta, torch.Tensor):
                size = math.prod(hint(size) for size in meta.shape) * meta.dtype.itemsize
                self.check_bytes(f"{op.name} ({op.type}) creates", size, describe(meta))

    def check_bytes(self, source: str, size: int, shape: str) -> None:
        """Raise `TooLarge` if a tensor exceeds the memory. A file is not limited in any other way."""
        if size > self._limit:
            near = f"{self._device} has {self._limit} bytes of memory"
            raise TooLarge(f"{source} a tensor of {size} bytes", got=shape, near=near)

    def _control(self, op: Op) -> None:
        """Infer a control-flow op. Its subgraphs receive tensors, because a loop can change a number."""
        parts = [self._parts[name] for name in op.subgraphs]
        returned: list[list[torch.Tensor]] = []
        for part in parts:
            given = op.inputs[len(op.inputs) - len(part.inputs) :]
            for data, tensor in zip(part.inputs, given, strict=True):
                data.outputs[0].meta = self._new(tensor.meta)
            self.run(part)
            returned.append([self._new(tensor.meta) for tensor in part.returned])
            part.results = [
                replace(result, layout=layout_of(tensor, index))
                if isinstance(result, TensorResult)
                else result
                for index, (result, tensor) in enumerate(zip(part.results, returned[-1], strict=True))
            ]
        if op.type in WHILE:
            returned[0] = [self._new(tensor.meta) for tensor in op.inputs]
        one, other = ([(tensor.dtype, tuple(tensor.shape)) for tensor in values] for values in returned)
        if one != other:
            what = f"the subgraphs of {op.name} return different dtypes or shapes"
            raise BadGraph(what, got=f"{one}, {other}")
        for output, tensor in zip(op.outputs, returned[1], strict=True):
            output.meta = tensor

    def _new(self, meta: torch.Tensor | Host | None) -> torch.Tensor:
        assert meta is not None, "the inputs of an op have been inferred"
        with self._mode:
            return torch.empty(meta.shape, dtype=meta.dtype, device=self._device)


def _check_numbers(op: Op) -> None:
    """Reject powers and shifts of sizes with huge results: Python's ints have no limit."""
    metas = [tensor.meta for tensor in op.inputs]
    numbers = [meta.items for meta in metas if isinstance(meta, Host) and not meta.dtype.is_floating_point]
    if op.type not in _LONG or len(numbers) != 2:
        return
    bases, powers = ([abs(n) for n in items if isinstance(n, int)] for items in numbers)
    if max(bases, default=0) > (1 if op.type == "Pow" else 0) and max(powers, default=0) > MOST_BITS:
        raise BadGraph("its result does not fit into 64 bits", got=f"{numbers[0]}, {numbers[1]}"[:200])


def memory_of_machine(device: torch.device) -> int:
    """Return the total memory of a device in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
