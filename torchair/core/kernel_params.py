"""Annotations for the parameters of kernels: in which form a kernel receives its inputs.

A parameter without one is a torch tensor, or a list of them. `Host` and `Value` need the IR, so they are in
`engine/registry.py`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated

import torch


class ParamKind(Enum):
    """The form in which a kernel receives the value of an input."""

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
"""A Python number if it is a rank-0 host value that means the same next to the op's tensors, else a
tensor.
"""
