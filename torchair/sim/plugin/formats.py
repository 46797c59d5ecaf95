"""Provide tensor formats. Here all tensors have torch's layout in memory; the number of the requested format
is stored with the memory, so that it can be read.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from torchair.core.log import logger
from torchair.ge.types import Format as _Format

Format: Any = enum.IntEnum("Format", {each.name.removeprefix("FORMAT_"): each.value for each in _Format})
"""Names of the formats."""


def get_npu_format(self: torch.Tensor) -> int:
    """Return the format that a tensor was cast to; the default is ND."""
    _check(self)
    return getattr(self.untyped_storage(), "_npu_format", int(Format["ND"]))


def _cast(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """Cast to a format. On the hardware this changes the layout; here it copies and stores the number."""
    return _cast_here(self.clone(), acl_format, customize_dtype)


def _cast_here(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """Cast the format in place."""
    _check(self)
    kind = Format(acl_format)
    logger.info("layout %s has no effect on the simulated device, which stores only its name", kind.name)
    setattr(self.untyped_storage(), "_npu_format", int(kind))  # noqa: B010 - no class of torch knows the name
    return self


# Operators, because graphs cannot contain Python calls; in a graph a cast is a copy.
_library = torch.library.Library("npu", "FRAGMENT")
_library.define("npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None) -> Tensor")
_library.define("npu_format_cast_(Tensor(a!) self, int acl_format, int? customize_dtype=None) -> Tensor(a!)")
_library.impl("npu_format_cast", _cast, "CompositeImplicitAutograd")
_library.impl("npu_format_cast_", _cast_here, "CompositeImplicitAutograd")
npu_format_cast, npu_format_cast_ = torch.ops.npu.npu_format_cast, torch.ops.npu.npu_format_cast_


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type != "npu":
        raise RuntimeError(f"expected a tensor on an npu device, got one on {tensor.device}")
