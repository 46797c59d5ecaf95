"""A compiled graph as Dynamo calls it where AOTAutograd has nothing to do around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.capture import Runner
from torchair.core.quick import Written


def plain_call(runner: Runner, indices: Sequence[int]) -> Callable[..., Any]:
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

    run.plain = (runner, tuple(indices))  # type: ignore[attr-defined] # for those who keep what they compile
    return run
