"""Switches of the hardware's own compiler. They are kept and can be read; nothing here depends on them."""

from __future__ import annotations

from typing import Any

from torchair.core.log import logger

allow_internal_format = True
"""May tensors have layouts of the hardware's own?"""

_options: dict[str, Any] = {}


def set_compile_mode(jit_compile: bool = False) -> None:
    """Are kernels compiled for each shape?"""
    set_option({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """Was that switched off, or never switched on?"""
    return _options.get("jitCompile", "disable") == "disable"


def set_option(option: dict[str, Any]) -> None:
    """Options of the hardware's runtime, by name."""
    if not isinstance(option, dict):
        raise TypeError(f"expected options by name, got {option!r}")
    _options.update(option)
    for name, value in option.items():
        logger.info(
            "%s=%s is for the hardware: the simulated device keeps it, and does nothing else", name, value
        )
