"""Runs one IR op, or a few, on tensors: interpreted and lowered, for sizes that are known and for symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, new_size
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret
from torchair.engine.lower import lower
from torchair.ge.builder import build
from torchair.ge.graph import ArgumentFeed, Graph, Tensor, TensorResult

CPU = torch.device("cpu")
Build = Callable[..., Any]


def fakes_of(tensors: Sequence[torch.Tensor], mode: FakeTensorMode, dynamic: bool) -> list[torch.Tensor]:
    """Fake tensors; with `dynamic` equal sizes above 1 are one symbol."""
    if not dynamic:
        return [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    symbols = {size: new_size(mode.shape_env, f"s{size}", size) for size in sizes}
    with mode:
        return [torch.empty([symbols.get(n, n) for n in x.shape], dtype=x.dtype) for x in tensors]


def graph_of(make: Build, tensors: Sequence[torch.Tensor], mode: FakeTensorMode, dynamic: bool) -> Graph:
    """The graph of `make(*inputs)`, with everything inferred."""
    graph = Graph("kernel", infer=inference(mode, CPU))
    inputs: list[Tensor] = []
    with graph:
        for index, fake in enumerate(fakes_of(tensors, mode, dynamic)):
            data = build.build("Data", index=index)
            data.meta = fake
            graph.feeds[data.op.name] = ArgumentFeed(index)
            inputs.append(data)
        made = make(*inputs)
    flat = torch.utils._pytree.tree_flatten(made)[0]
    graph.results = [TensorResult(tensor) for tensor in flat]
    return graph


def run(make: Build, *tensors: torch.Tensor, dynamic: bool = False) -> list[list[torch.Tensor]]:
    """What the reference run and the lowered graph make of the tensors, and that inference knew it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    graph = graph_of(make, tensors, mode, dynamic)
    names = [(op.name, op.outputs[0].meta) for op in graph.inputs]
    lowered = lower(graph, names, mode, CPU, select_decomp_table())
    both = [interpret(graph, list(tensors), CPU), list(lowered(*tensors))]
    for result, *values in zip(graph.results, *both, strict=True):
        for value in values:
            assert value.dtype == result.tensor.meta.dtype
            if not dynamic:
                assert value.shape == result.tensor.meta.shape
    return both


def check(make: Build, expected: Any, *tensors: torch.Tensor, dynamic: bool = False, **within: float) -> None:
    """Assert that both runs make what is expected: values, dtypes and shapes."""
    wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for got in run(make, *tensors, dynamic=dynamic):
        torch.testing.assert_close(got, wanted, equal_nan=True, check_stride=False, **within)


def strided(x: torch.Tensor) -> torch.Tensor:
    """Equal to x, and not contiguous where there are elements enough to tell."""
    return torch.stack([x, x], -1)[..., 0] if x.ndim else x
