"""Check, store and log settings that have an effect only on the hardware."""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

from torchair.core.log import logger

MODES = {"default": 0, "warn": 1, "error": 2}
_mode = [0]
_open: list[str] = []
"""Names of the open super kernel scopes."""


def _log_ignored(what: str) -> None:
    logger.info("%s is stored, but has no effect on the simulated device", what)


class Precision:
    """`torch.npu.matmul`, `torch.npu.conv`: whether products may have reduced precision."""

    def __init__(self, what: str, allow: bool) -> None:
        self._what, self._allow = what, allow

    @property
    def allow_hf32(self) -> bool:
        """Whether float32 may have reduced precision on the hardware."""
        return self._allow

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{self._what}.allow_hf32 must be True or False, got {value!r}")
        self._allow = value
        _log_ignored(f"{self._what}.allow_hf32={value}")


matmul, conv = Precision("matmul", False), Precision("conv", True)


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Set the mode that reports synchronizing calls on the hardware. Here no call waits."""
    known = MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if known is None or isinstance(known, bool) or known not in MODES.values():
        raise RuntimeError(f"expected one of {', '.join(MODES)}, or 0, 1, 2, got {debug_mode!r}")
    _mode[0] = known
    _log_ignored(f"sync_debug_mode={debug_mode}")


def get_sync_debug_mode() -> int:
    """Return the mode."""
    return _mode[0]


def super_kernel_scope_begin(scope_name: str | None = None) -> None:
    """Begin a super kernel scope, in which the hardware combines kernels."""
    _open.append(_named(scope_name))
    _log_ignored(f"super kernel {_open[-1]!r}")


def super_kernel_scope_end(scope_name: str | None = None) -> None:
    """End the innermost scope."""
    name = _named(scope_name)
    if not _open:
        raise RuntimeError(f"cannot end the super kernel scope {name!r}: no scope is open")
    if scope_name is not None and _open[-1] != name:
        raise RuntimeError(
            f"cannot end the super kernel scope {name!r}: the innermost scope is {_open[-1]!r}"
        )
    _open.pop()


def _named(name: str | None) -> str:
    if name is None:
        return "default"
    if not isinstance(name, str) or not name.strip():
        raise RuntimeError(f"the name of a super kernel scope must not be blank, got {name!r}")
    return name


_libraries: list[torch.library.Library] = []


def define_scopes() -> None:
    """Define both functions as operators, as the vendor's plug-in does."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for function in (super_kernel_scope_begin, super_kernel_scope_end):
        library.define(f"{function.__name__}(str? scope_name=None) -> ()")
        library.impl(function.__name__, function, "CompositeExplicitAutograd")
        has_side_effect(getattr(torch.ops.npu, function.__name__).default)
