"""Compile with options, and look at what came of it: the graphs of the IR, and the runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import torchair
from torchair.backend.pipeline import compile as backend
from torchair.backend.pipeline import link
from torchair.backend.specialize.size_buckets import GearProgram
from torchair.capture import Runner
from torchair.configs.option import assign
from torchair.convert.base.report import ConversionReport
from torchair.ge.graph import Graph, Op


@dataclass
class Seen:
    """What was made, in order."""

    graphs: list[Graph] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)

    @property
    def types(self) -> list[str]:
        """The types of the ops of the last graph."""
        return [op.type for op in self.graphs[-1].ops]

    @property
    def runner(self) -> Runner:
        return self.runners[-1]

    def ops(self, type: str) -> list[Op]:
        return [op for op in self.graphs[-1].ops if op.type == type]


@contextmanager
def watching() -> Iterator[Seen]:
    """Keep what compilations make in here."""
    seen = Seen()
    to_ir, capture = backend.convert_to_ir, link.capture

    def keep_graph(*args: Any) -> tuple[Graph, ConversionReport]:
        graph, report = to_ir(*args)
        seen.graphs.append(graph)
        return graph, report

    def keep_runner(*args: Any) -> Runner:
        seen.runners.append(capture(*args))
        return seen.runners[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "convert_to_ir", keep_graph)
        patch.setattr(link, "capture", keep_runner)
        yield seen


def make_config(
    options: Mapping[str, Any] | None = None, mode: str = "max-autotune", codegen: str = "eager"
) -> torchair.CompilerConfig:
    """Return a config with options by path, such as `"debug.run_eagerly"`."""
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    for path, value in (options or {}).items():
        assign(config, path, value)
    return config


def compile_fn(
    fn: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    mode: str = "max-autotune",
    codegen: str = "eager",
    *,
    reset: bool = False,
    **how: Any,
) -> Any:
    """Compile a function or module with `make_config(options, mode, codegen)`.

    With `reset`, Dynamo first forgets what it compiled. `how` goes to `torch.compile`.
    """
    if reset:
        torch.compiler.reset()
    backend = torchair.get_npu_backend(compiler_config=make_config(options, mode, codegen))
    return torch.compile(fn, backend=backend, **how)


def seen_with(options: dict[str, Any], fn: Callable[..., Any], *args: Any, **rest: Any) -> Seen:
    """What is made of a call whose results and arguments are those of eager."""
    torch.compiler.reset()
    theirs, ours = ([a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2))
    with watching() as seen, torch.no_grad():
        got = compile_fn(fn, options, **rest)(*ours)
    torch.testing.assert_close(got, fn(*theirs))
    torch.testing.assert_close(ours, theirs)
    return seen


def taken_programs(patch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are made for gears from here on."""
    made: list[Any] = []
    take = GearProgram.take
    patch.setattr(GearProgram, "take", lambda self: made.append(take(self)) or made[-1])
    return made
