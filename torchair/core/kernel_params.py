"""How a kernel takes its inputs: annotations of its positional parameters, each with its meaning attached.

An input without one is a torch tensor, or a list of them. `Host` and `Value` need the IR, so
`engine/registry.py` has them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated

import torch


class Takes(Enum):
    """In which form a kernel is given the value of an input."""

    TENSOR = auto()
    INTS = auto()
    INT = auto()
    NUMBER = auto()
    HOST = auto()
    OPERAND = auto()
    VALUE = auto()


Ints = Annotated[list[int], Takes.INTS]
"""A list of Python ints (or symbols)."""

Int = Annotated[int, Takes.INT]
"""One int."""

Number = Annotated[float, Takes.NUMBER]
"""One number."""

Operand = Annotated[torch.Tensor | float, Takes.OPERAND]
"""A Python number if it is a rank-0 host value that means the same beside the tensors of the op, else a
tensor."""
