"""A compiled graph as Dynamo calls it where AOTAutograd has nothing to do around it."""

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
    """The call as Dynamo makes it, without AOTAutograd's layers around it (a third of the host's time)."""
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
    """A runner of an inference graph, and what AOTAutograd does around its calls, as data."""

    runner: Runner
    written: tuple[int, ...]
    """Inputs whose versions a call raises."""
    marks: dict[int, set[int]]
    """Sizes of outputs that Dynamo is told to be dynamic."""
    views: dict[int, tuple[int, bool, bool]]
    """Outputs that are views of inputs, whether they are these inputs, and whether they require gradients."""
    without_autocast: bool = False

    def call(self) -> Callable[..., Any]:
        """As Dynamo calls it."""
        inner = direct_call(self.runner, self.written)
        if not (self.marks or self.views or self.without_autocast):
            return inner

        def run(*args: Any) -> Any:
            with disabled_autocast() if self.without_autocast else nullcontext():
                outputs = list(inner(*args))
            for place, (base, is_input, requires_grad) in self.views.items():
                view = args[base] if is_input else view_like(args[base], outputs[place])
                is_detached = view.requires_grad and not requires_grad and not is_input
                outputs[place] = view.detach() if is_detached else view
            for place, dims in self.marks.items():
                mark_propagated(outputs[place], dims)
            return outputs

        return run
