"""What models use that are defined elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import torch

OFFSET = 3


class Settings:
    """Read as attributes of a class."""

    scale = 2


def shifted(x: torch.Tensor, by: int = 5, *, times: int = 1) -> torch.Tensor:
    """Reads a global variable of its own module, and its defaults."""
    return x * OFFSET * times + by


def decorated(func: Any) -> Any:
    """As libraries wrap `forward`: the function that is called is a variable of the wrapper's."""

    @functools.wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("more", func.__defaults__[-1])
        return func(self, *args, **kwargs)

    return wrapper


@torch._dynamo.assume_constant_result
def is_available(name: str) -> bool:
    """Said to be constant: a trace asks once."""
    return OFFSET == 3 and name == "it"
