"""Wishes that only the hardware can grant. They are checked and kept, and the log says that nothing depends
on them here.
"""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

from torchair.core.log import logger

MODES = {"default": 0, "warn": 1, "error": 2}
_mode = [0]
_open: list[str] = []
"""Scopes of super kernels that were begun, by name."""


def _said(what: str) -> None:
    logger.info("%s is for the hardware: the simulated device keeps it, and does nothing else", what)


class Precision:
    """`torch.npu.matmul`, `torch.npu.conv`: may products be computed with fewer digits?"""

    def __init__(self, what: str, allow: bool) -> None:
        self._what, self._allow = what, allow

    @property
    def allow_hf32(self) -> bool:
        """A hint for the hardware: float32 with fewer digits."""
        return self._allow

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{self._what}.allow_hf32 must be True or False, got {value!r}")
        self._allow = value
        _said(f"{self._what}.allow_hf32={value}")


matmul, conv = Precision("matmul", False), Precision("conv", True)


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """A hint for the hardware: tell of calls that wait for the device. Here work is done when it is given, so
    that none waits.
    """
    known = MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if known is None or isinstance(known, bool) or known not in MODES.values():
        raise RuntimeError(f"expected one of {', '.join(MODES)}, or 0, 1, 2, got {debug_mode!r}")
    _mode[0] = known
    _said(f"sync_debug_mode={debug_mode}")


def get_sync_debug_mode() -> int:
    """The mode that was set."""
    return _mode[0]


def super_kernel_scope_begin(scope_name: str | None = None) -> None:
    """A hint for the hardware: kernels from here to the end of the scope become one."""
    _open.append(_named(scope_name))
    _said(f"super kernel {_open[-1]!r}")


def super_kernel_scope_end(scope_name: str | None = None) -> None:
    """The scope that was begun last ends."""
    name = _named(scope_name)
    if not _open:
        raise RuntimeError(f"no super kernel scope was begun that {name!r} could end")
    if scope_name is not None and _open[-1] != name:
        raise RuntimeError(f"the scope that was begun last is {_open[-1]!r}, not {name!r}")
    _open.pop()


def _named(name: str | None) -> str:
    if name is None:
        return "default"
    if not isinstance(name, str) or not name.strip():
        raise RuntimeError(f"a super kernel scope has a name that is not blank, got {name!r}")
    return name


_libraries: list[torch.library.Library] = []


def define_scopes() -> None:
    """The same as operators, which the vendor's plug-in defines where it is."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for function in (super_kernel_scope_begin, super_kernel_scope_end):
        library.define(f"{function.__name__}(str? scope_name=None) -> ()")
        library.impl(function.__name__, function, "CompositeExplicitAutograd")
        has_side_effect(getattr(torch.ops.npu, function.__name__).default)
