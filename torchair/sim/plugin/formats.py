"""Layouts of tensors. Here all lie in memory as torch has them; the number of the layout that was asked for
is kept with the memory, so that it can be read again.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from torchair.core.log import logger
from torchair.ge.types import Format as _Format

Format: Any = enum.IntEnum("Format", {each.name.removeprefix("FORMAT_"): each.value for each in _Format})
"""Names of the layouts."""


def get_npu_format(self: torch.Tensor) -> int:
    """The layout that a tensor was cast to; ND if none."""
    _check(self)
    return getattr(self.untyped_storage(), "_npu_format", int(Format["ND"]))


def _cast(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """The tensor in another layout: a hint for the hardware, which keeps values in blocks. Here a new tensor
    of the same values says what it was cast to.
    """
    return _cast_here(self.clone(), acl_format, customize_dtype)


def _cast_here(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """The same, in place."""
    _check(self)
    kind = Format(acl_format)
    logger.info("layout %s is for the hardware: the simulated device keeps its name only", kind.name)
    setattr(self.untyped_storage(), "_npu_format", int(kind))  # noqa: B010 - no class of torch knows the name
    return self


# Operators, as graphs take no calls of Python: there a cast is the copy that it makes.
_library = torch.library.Library("npu", "FRAGMENT")
_library.define("npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None) -> Tensor")
_library.define("npu_format_cast_(Tensor(a!) self, int acl_format, int? customize_dtype=None) -> Tensor(a!)")
_library.impl("npu_format_cast", _cast, "CompositeImplicitAutograd")
_library.impl("npu_format_cast_", _cast_here, "CompositeImplicitAutograd")
npu_format_cast, npu_format_cast_ = torch.ops.npu.npu_format_cast, torch.ops.npu.npu_format_cast_


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type != "npu":
        raise RuntimeError(f"expected a tensor of an npu device, got one of {tensor.device}")
