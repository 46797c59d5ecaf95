"""Cache compilations of capture mode across processes."""

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
    """Compile a bound method for capture mode once, and load it from the cache in later processes.

    See `torchair.inference.cache_compile`; the default config is that of capture mode.

    Args:
        func: A bound method of a `torch.nn.Module`.
        dynamic: Whether one compilation serves several sizes.
        cache_dir: The cache directory; None for `TORCHAIR_CACHE_HOME`, or `.torchair_cache`.
        global_rank: The rank of this process; None for the one of `torch.distributed`.
        tp_rank: The tensor-parallel rank, as a part of the entry's name.
        pp_rank: The pipeline-parallel rank, as a part of the entry's name.
        **kwargs: `config`, `backend`, `options` (flat option names), `custom_decompositions`.

    Returns:
        A callable with the signature of the method.
    """
    ranks = {"global_rank": global_rank, "tp_rank": tp_rank, "pp_rank": pp_rank}
    if kwargs.get("config") is None and kwargs.get("backend") is None:
        kwargs["config"] = CompilerConfig()
    return _cache_compiler.cache_compile(func, dynamic=dynamic, cache_dir=cache_dir, **ranks, **kwargs)
