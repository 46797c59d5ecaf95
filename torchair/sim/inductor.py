"""`torch.compile` without a backend: Inductor has no code for the simulated device. Its graphs are compiled
as those of graph mode are, with the code that Inductor has for the backing device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torchair.backend.dynamo.entry_points import make_backend
from torchair.configs.compiler_config import CompilerConfig


def compile_default(gm: fx.GraphModule, inputs: Sequence[Any], *, records: bool) -> Callable[..., Any]:
    """What Dynamo calls. As with Inductor, graphs are recorded with `mode="reduce-overhead"` and its like."""
    config = CompilerConfig()
    config.engine_config.codegen = "inductor"
    if records:
        config.mode = "npugraph_ex"
    else:
        config.experimental_config.memory_efficiency = True
    return make_backend(config, {})(gm, inputs)
