"""Store the switches of the hardware's compiler, which have no effect on the simulated device."""

from __future__ import annotations

from typing import Any

from torchair.core.log import logger

allow_internal_format = True
"""Whether tensors may have private layouts of the hardware."""

_options: dict[str, Any] = {}


def set_compile_mode(jit_compile: bool = False) -> None:
    """Set whether the hardware compiles kernels for each shape."""
    set_option({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """Return whether compilation for each shape is off, which is the default."""
    return _options.get("jitCompile", "disable") == "disable"


def set_option(option: dict[str, Any]) -> None:
    """Set options of the hardware's runtime by name."""
    if not isinstance(option, dict):
        raise TypeError(f"set_option expects a dict of options by name, got {option!r}")
    _options.update(option)
    for name, value in option.items():
        logger.info("%s=%s is stored, but has no effect on the simulated device", name, value)
