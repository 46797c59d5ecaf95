"""Checks of library ops: eager against a formula, the graph below the backend, and both modes of the
backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

import torchair
from tests.convert.harness import check, compare, converted
from tests.support.memory import copies, other_memory, seen
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import AirError

MODES = ("max-autotune", "npugraph_ex")
HALVES = (torch.float16, torch.bfloat16)
FORMS = [False, True]
"""With known sizes, and with symbols."""
NO_FLOAT = re.compile("does not accept (FLOAT|FLOAT16|BF16) as ")


def agrees(
    op: Callable[..., Any], args: Sequence[Any], formula: Callable[..., Any], **tolerance: Any
) -> None:
    """Eager is what `formula` says; interpreted and lowered, static and dynamic, are what eager is, in types
    that the IR op takes.
    """
    expected = listed(formula(*args))
    got = listed(op(*copies(args)))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    args = taken(op, args)
    for dynamic in FORMS:
        report = check(op, *args, dynamic=dynamic, **tolerance)
        assert not report.fallbacks


def taken(fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """The arguments in types that the IR ops take: where they take no float32, numbers of 16 bits. All
    arguments are tried at once, then one after another.
    """
    found, why = list(args), refused(fn, args)
    for places in (range(len(found)), *([place] for place in range(len(found)))):
        for dtype in HALVES if why else ():
            tried = [halved(arg, dtype) if place in places else arg for place, arg in enumerate(found)]
            told = refused(fn, tried)
            if told is not None and told != why and (not told or len(places) == 1):
                found, why = tried, told
                break
    return found


def refused(fn: Callable[..., Any], args: Sequence[Any]) -> str | None:
    """Which input takes no float32 (or another of 16 bits); None where the call itself fails."""
    try:
        _, report, _, _ = converted(fn, args)
    except (RuntimeError, AirError):
        return None
    told = (reason.why for reason in report.fallbacks if NO_FLOAT.search(reason.why))
    return next(told, "")


def halved(value: Any, dtype: torch.dtype) -> Any:
    """float32 tensors in another dtype, also in lists."""
    if isinstance(value, list | tuple):
        return type(value)(halved(item, dtype) for item in value)
    is_float = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *HALVES)
    return value.to(dtype) if is_float else value


def compiles(fn: Callable[..., Any], args: Sequence[Any], mode: str, dynamic: bool, **tolerance: Any) -> None:
    """`torch.compile` in one mode gives eager's results, its writes into arguments, and their memory."""
    args = taken(fn, args)
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
