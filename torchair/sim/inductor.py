"""Compile graphs for `torch.compile` without a backend. Inductor has no code for the simulated device, so
they are compiled as in graph mode, with Inductor's code for the backing device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torchair.backend.dynamo.entry_points import make_backend
from torchair.configs.compiler_config import CompilerConfig


def compile_default(gm: fx.GraphModule, inputs: Sequence[Any], *, records: bool) -> Callable[..., Any]:
    """Compile a graph for Dynamo. As in Inductor, modes like `reduce-overhead` record graphs."""
    config = CompilerConfig()
    config.engine_config.codegen = "inductor"
    if records:
        config.mode = "npugraph_ex"
    else:
        config.experimental_config.memory_efficiency = True
    return make_backend(config, {})(gm, inputs)
