"""What code depends on beside the graph: the state of the process that it was asked for in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from torchair.core.torch_private.compilers.inductor import changed_options, set_options

# From the general to the special: setting one changes those below it.
SWITCHES = (
    "fp32_precision",
    "cudnn.fp32_precision",
    "mkldnn.fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
    "mkldnn.enabled",
)
"""Of `torch.backends`; who compiles looks at them."""


@dataclass(frozen=True)
class TorchState:
    """All of it. What a graph leaves open (the type of `torch.ones(3)`) is decided by it too."""

    threads: int
    dtype: torch.dtype
    """Of numbers without another."""
    precision: str
    """Of products of matrices, in torch's older words; empty where they do not say it."""
    switches: Mapping[str, Any]
    options: dict[str, Any]

    @staticmethod
    def now() -> TorchState:
        """Of this process."""
        return TorchState(
            torch.get_num_threads(),
            torch.get_default_dtype(),
            _precision(),
            {name: attrgetter(name)(torch.backends) for name in SWITCHES},
            changed_options(),
        )

    def enter(self) -> None:
        """Make this process like that."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        if self.precision:
            torch.set_float32_matmul_precision(self.precision)
        for name, value in self.switches.items():
            place, _, last = f"backends.{name}".rpartition(".")
            owner = attrgetter(place)(torch)
            if getattr(owner, last) != value:  # torch asks not to use both words where one says it
                setattr(owner, last, value)
        set_options(self.options)


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was said in the newer words, and these have no older ones
        return ""
