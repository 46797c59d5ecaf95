"""How a kernel takes its inputs: annotations of its positional parameters, each with its meaning attached.

An input without one is a torch tensor, or a list of them. `Host` and `Value` need the IR, so
`engine/registry.py` has them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated

import torch


class ParamKind(Enum):
    """In which form a kernel is given the value of an input."""

    TENSOR = auto()
    INTS = auto()
    INT = auto()
    NUMBER = auto()
    HOST = auto()
    OPERAND = auto()
    VALUE = auto()


Ints = Annotated[list[int], ParamKind.INTS]
"""A list of Python ints (or symbols)."""

Int = Annotated[int, ParamKind.INT]
"""One int."""

Number = Annotated[float, ParamKind.NUMBER]
"""One number."""

Operand = Annotated[torch.Tensor | float, ParamKind.OPERAND]
"""A Python number if it is a rank-0 host value that means the same beside the tensors of the op, else a
tensor."""
