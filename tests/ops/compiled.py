"""Checks of library ops: eager against a formula, the graph below the backend, and both modes of the
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import torchair
from tests.convert.harness import check, compare
from tests.memory import copies, other_memory, seen
from torchair.configs.compiler_config import CompilerConfig

MODES = ("max-autotune", "npugraph_ex")


def agrees(
    op: Callable[..., Any], args: Sequence[Any], formula: Callable[..., Any], **tolerance: Any
) -> None:
    """Eager, interpreted and lowered, static and dynamic: all are what `formula` says."""
    expected = listed(formula(*args))
    got = listed(op(*copies(args)))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    for dynamic in (False, True):
        report = check(op, *args, dynamic=dynamic, **tolerance)
        assert not report.fallbacks


def compiles(fn: Callable[..., Any], args: Sequence[Any], mode: str, dynamic: bool, **tolerance: Any) -> None:
    """`torch.compile` in one mode gives eager's results, its writes into arguments, and their memory."""
    torch._dynamo.reset()
    config = CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"
    backend = torchair.get_npu_backend(compiler_config=config)
    compiled = torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    got, expected = seen(lambda given: compiled(*given), args), seen(lambda given: fn(*given), args)
    compare(got.values, expected.values, **tolerance)
    assert not (why := other_memory(got, expected)), why


def listed(result: Any) -> list[Any]:
    """Nested results as one list; absent ones are left out."""
    if isinstance(result, list | tuple):
        return [value for item in result for value in listed(item)]
    return [] if result is None else [result]


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers that are the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64, seed: int = 0) -> torch.Tensor:
    """Whole numbers of low … high - 1."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)
