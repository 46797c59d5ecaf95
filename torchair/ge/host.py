"""Define host values: small vectors of sizes that never become device data.

In the IR a size is computed by ops on int64 tensors of rank 0 or 1. While such a tensor comes only from
shapes, symbols and constants, the compiler knows its value as Python numbers and `SymInt`s. A `Host` is that
value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.fxgraph.symbols import is_symbol

__all__ = ["Host", "Number", "host", "host_dtype", "is_symbol"]

# A rank-0 value is a number, a rank-1 value a tuple of numbers; numbers may be symbols.
Number = Any


@dataclass(frozen=True)
class Host:
    """Hold a rank-0 number or a rank-1 tuple of numbers, with the dtype of its IR tensor."""

    value: Number | tuple[Number, ...]
    dtype: torch.dtype = torch.int64

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.value),) if isinstance(self.value, tuple) else ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def items(self) -> tuple[Number, ...]:
        """Return the numbers as a tuple, whatever the rank."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    def to_tensor(self, device: torch.device | str | None = None) -> torch.Tensor:
        """Convert to data: one scalar tensor, or several stacked ones if there are symbols among them."""
        if isinstance(self.value, tuple) and not any(is_symbol(item) for item in self.value):
            return torch.tensor(self.value, dtype=self.dtype, device=device)
        if not is_symbol(self.value) and not isinstance(self.value, tuple):
            return torch.full((), self.value, dtype=self.dtype, device=device)
        scalars = [torch.scalar_tensor(item, dtype=self.dtype, device=device) for item in self.items]
        return torch.stack(scalars) if isinstance(self.value, tuple) else scalars[0]


def host_dtype(value: object) -> torch.dtype:
    """Return the IR dtype of a Python number or symbol."""
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.float32 if isinstance(value, float | torch.SymFloat) else torch.int64


def host(value: Number | Sequence[Number]) -> Host:
    """Create a Host from a number, a symbol or a list of them."""
    if isinstance(value, list | tuple | torch.Size):
        return Host(tuple(value))
    return Host(value, host_dtype(value))
