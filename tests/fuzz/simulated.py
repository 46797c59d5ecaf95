"""The simulated graph device for any layout: inputs and outputs may overlap themselves."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.simulated_device import SimulatedDevice


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Without the repetitions of expanded dims, so it can be written."""
    size = [min(n, 1) if step == 0 else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(size, tensor.stride())


class AnyLayout(SimulatedDevice):
    """Leaves the whole memory of inputs as it was while it records, and replays into expanded outputs."""

    def record(self, program: Any, args: Any, *rest: Any, **named: Any) -> Any:
        before = [(a, a.untyped_storage().clone()) for a in args if isinstance(a, torch.Tensor)]
        graph, outputs = super().record(program, args, *rest, **named)
        for tensor, saved in before:
            tensor.untyped_storage().copy_(saved)
        graph.outputs = [distinct(o) if isinstance(o, torch.Tensor) else o for o in outputs]
        graph.program = lambda args: [
            distinct(o) if isinstance(o, torch.Tensor) else o for o in program(list(args))
        ]
        return graph, outputs
