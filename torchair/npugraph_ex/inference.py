"""Compilations of capture mode that outlive a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchair.configs.npugraph_ex import CompilerConfig
from torchair.inference import _cache_compiler
from torchair.inference._cache_compiler import readable_cache

__all__ = ["cache_compile", "readable_cache"]


def cache_compile(
    func: Callable[..., Any],
    *,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A bound method of a module, compiled once for capture mode and loaded from `cache_dir` by later
    processes; `options=` are the flat option names.
    """
    ranks = {"global_rank": global_rank, "tp_rank": tp_rank, "pp_rank": pp_rank}
    if kwargs.get("config") is None and kwargs.get("backend") is None:
        kwargs["config"] = CompilerConfig()
    return _cache_compiler.cache_compile(func, dynamic=dynamic, cache_dir=cache_dir, **ranks, **kwargs)
