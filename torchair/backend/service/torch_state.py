"""The state of torch that generated code depends on in addition to the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from torchair.core.torch_private.compilers.inductor import changed_options, set_options

# General options come first: setting one changes the more specific ones after it.
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
"""Attributes of `torch.backends` that compilers read."""


@dataclass(frozen=True)
class TorchState:
    """The state of torch in one process. It also decides what a graph leaves open, as the dtype of
    `torch.ones(3)`.
    """

    threads: int
    dtype: torch.dtype
    """`torch.get_default_dtype()`."""
    precision: str
    """`torch.get_float32_matmul_precision()`; empty if torch's older API cannot express the precision."""
    switches: Mapping[str, Any]
    options: dict[str, Any]

    @staticmethod
    def now() -> TorchState:
        """Read the state of this process."""
        return TorchState(
            torch.get_num_threads(),
            torch.get_default_dtype(),
            _precision(),
            {name: attrgetter(name)(torch.backends) for name in SWITCHES},
            changed_options(),
        )

    def enter(self) -> None:
        """Apply the state to this process."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        if self.precision:
            torch.set_float32_matmul_precision(self.precision)
        for name, value in self.switches.items():
            path, _, attribute = f"backends.{name}".rpartition(".")
            owner = attrgetter(path)(torch)
            if getattr(owner, attribute) != value:  # torch asks not to mix the older and the newer API
                setattr(owner, attribute, value)
        set_options(self.options)


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the newer API, and the older one cannot express it
        return ""
