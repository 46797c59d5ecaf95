"""What compiled graphs were called with and returned, so that their files can be held to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.capture import Runner
from torchair.configs.compiler_config import CompilerConfig


def copied(value: Any) -> Any:
    """A tensor with the same strides, in memory of its own; an expanded one with all of its elements."""
    if not isinstance(value, torch.Tensor):
        return value
    if 0 in value.stride():
        return value.detach().clone()
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value.detach())


@dataclass
class Call:
    """One call of one graph; `args` are as before it, `left` as after it."""

    graph: str
    args: list[Any]
    outputs: list[Any]
    left: list[Any]
    random: torch.Tensor


@dataclass
class Seen:
    """A backend that compiles as `get_npu_backend` does, and keeps each call of each graph."""

    config: CompilerConfig
    calls: list[Call] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def compile(*args: Any) -> Any:
            return _Spy(compile_fx(*args), self.calls)

        return compile_dynamo(gm, inputs, resolve_settings(self.config), {}, compile)


class _Spy:
    """The runner, and a look at its calls."""

    _boxed_call = True

    def __init__(self, runner: Runner, calls: list[Call]) -> None:
        self._runner = runner
        self._calls = calls

    @property
    def boxed(self) -> Any:
        return self

    def fast_path(self, written: bytes) -> None:
        return None

    def __call__(self, args: list[Any]) -> list[Any]:
        given, kept, random = [copied(arg) for arg in args], list(args), torch.get_rng_state()
        outputs = self._runner(args)
        name = self._runner.strategy.compiled.name
        made = [copied(output) for output in outputs]
        self._calls.append(Call(name, given, made, [copied(arg) for arg in kept], random))
        return outputs
