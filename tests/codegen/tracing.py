"""Small ATen graphs for these tests, and a counter of allocated bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.profiler import ProfilerActivity, profile

from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, make_fx


@dataclass
class Traced:
    """A graph and the fake inputs it was traced with."""

    gm: fx.GraphModule
    inputs: list[Any]


def trace(
    fn: Callable[..., Sequence[Any]],
    *args: torch.Tensor,
    dynamic: Sequence[int] = (),
    size_first: bool = False,
    decompose: bool = True,
) -> Traced:
    """An ATen graph of `fn`. The first size of each argument in `dynamic` is a symbol.

    With `size_first`, the first of these symbols is also the first input, as AOTAutograd passes it.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes: list[Any] = [_fake(mode, arg, index in dynamic) for index, arg in enumerate(args)]
    if size_first:
        fakes.insert(0, fakes[dynamic[0]].size(0))
    table = select_decomp_table() if decompose else {}
    with mode:
        traced = make_fx(fn, decomposition_table=table, _allow_non_fake_inputs=True)
        return Traced(traced(*fakes), fakes)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, dynamic: bool) -> torch.Tensor:
    if not dynamic:
        return mode.from_tensor(tensor, static_shapes=True)
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (tensor.dim() - 1)]
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def allocated(call: Callable[[], Any]) -> int:
    """Bytes that the CPU allocator hands out during the call, whoever asks."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0)
