"""Serving a model: compilations that outlive a process, and sizes announced beforehand."""

from torchair.backend.gears import set_dim_gears
from torchair.inference._cache_compiler import cache_compile, readable_cache
from torchair.inference.auto_gears import auto_gears

__all__ = ["auto_gears", "cache_compile", "readable_cache", "set_dim_gears"]
