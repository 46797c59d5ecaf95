"""Serving a model: compilations that outlive a process, and sizes announced beforehand."""

from typing import TYPE_CHECKING, Any

from torchair.core.late import attribute
from torchair.inference._cache_compiler import cache_compile, readable_cache

if TYPE_CHECKING:
    from torchair.backend.gears import set_dim_gears

__all__ = ["cache_compile", "readable_cache", "set_dim_gears"]


def __getattr__(name: str) -> Any:
    """What is not needed where all was compiled before."""
    found = globals()[name] = attribute(__name__, {"set_dim_gears": "torchair.backend.gears"}, name)
    return found
