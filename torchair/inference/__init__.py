"""Serve a model: cache compilations across processes, and declare the sizes of inputs."""

from typing import TYPE_CHECKING, Any

from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.inference._cache_compiler import cache_compile, readable_cache

if TYPE_CHECKING:
    from torchair.backend.specialize.size_buckets import set_dim_gears
    from torchair.inference._auto_buckets import auto_gears

__all__ = ["auto_gears", "cache_compile", "readable_cache", "set_dim_gears"]

_HOMES = {
    "auto_gears": "torchair.inference._auto_buckets",
    "set_dim_gears": "torchair.backend.specialize.size_buckets",
}
"""Loaded on first use: a process that only loads cached compilations does not need them."""


def __getattr__(name: str) -> Any:
    found = globals()[name] = lazy_getattr(__name__, _HOMES, name)
    return found
