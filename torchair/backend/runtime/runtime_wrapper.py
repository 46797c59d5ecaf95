"""Call a compiled graph from Dynamo without AOTAutograd's runtime wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from torchair.capture import Runner
from torchair.core.native.fast_replay import Written
from torchair.core.torch_private.device.memory import disabled_autocast, mark_propagated, view_like


def direct_call(runner: Runner, indices: Sequence[int]) -> Callable[..., Any]:
    """Return the function that Dynamo calls, without AOTAutograd's wrappers (a third of the host time)."""
    written = Written(indices)
    boxed, fast_path = runner.boxed, runner.fast_path(written.packed)

    def run(*args: Any) -> Any:
        if fast_path is not None and (outputs := fast_path(args)) is not None:
            return outputs
        if indices:
            written.raise_versions(args)
        if not torch.is_grad_enabled():
            return boxed(list(args))
        with torch.no_grad():
            return boxed(list(args))

    return run


@dataclass(frozen=True)
class RuntimeWrapper:
    """A runner of an inference graph, and the work of AOTAutograd around its calls as data."""

    runner: Runner
    written: tuple[int, ...]
    """Indices of inputs whose version counters each call increases."""
    marks: dict[int, set[int]]
    """Dimensions that are marked as dynamic, by the index of the output."""
    views: dict[int, tuple[int, bool, bool]]
    """Outputs that are views of an input: its index, whether the output is the input itself, and whether it
    requires gradients.
    """
    without_autocast: bool = False

    def call(self) -> Callable[..., Any]:
        """Return the function that Dynamo calls."""
        inner = direct_call(self.runner, self.written)
        if not (self.marks or self.views or self.without_autocast):
            return inner

        def run(*args: Any) -> Any:
            with disabled_autocast() if self.without_autocast else nullcontext():
                outputs = list(inner(*args))
            for index, (base, is_input, requires_grad) in self.views.items():
                view = args[base] if is_input else view_like(args[base], outputs[index])
                is_detached = view.requires_grad and not requires_grad and not is_input
                outputs[index] = view.detach() if is_detached else view
            for index, dims in self.marks.items():
                mark_propagated(outputs[index], dims)
            return outputs

        return run
