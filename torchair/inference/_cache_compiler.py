"""Compilations that outlive a process. Graphs are saved and loaded; for compiled functions only the names and
signatures are here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from torchair.backend.export import Place, write_model
from torchair.backend.loaded import LoadedModel, load_air
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import BadOptionType, NotPossible, NotYet
from torchair.debug.files import rank_and_size

_COMPILE = "torch.compile(…) with the same config compiles in each process"


def _missing(name: str, instead: str = _COMPILE) -> NoReturn:
    raise NotYet(f"{name} keeps and loads nothing in this version", next=instead)


def _place(folder: Path) -> Place:
    rank, size = rank_and_size()
    if size == 1:
        return Place(folder, "compiled_graph.air")
    return Place(folder / f"rank_{rank}", f"compiled_graph{rank}.air")


def cache_compile(
    func: Callable[..., Any],
    *,
    config: CompilerConfig | None = None,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A bound method of a module, compiled once and loaded from `cache_dir` by later processes."""
    _missing("cache_compile", "torch.compile(self.method, backend=torchair.get_npu_backend(…)) in its place")


def readable_cache(cache_bin: str, print_output: bool = True, file: str | None = None) -> str:
    """What a kept compilation contains, as text."""
    _missing("readable_cache", "there are no cache files to read")


class CompiledModel:
    """A model compiled and kept: called like the model, without its code."""

    VERSION = "1.0.5"
    FILE = "compiled_module"

    @staticmethod
    def save_graph(
        model: torch.nn.Module,
        args: tuple[Any, ...],
        dynamic: bool = False,
        config: CompilerConfig = CompilerConfig(),  # noqa: B008 - read, never written
        save_path: str | Path = "save_path",
        **kwargs: Any,
    ) -> None:
        """Trace a model with these sample inputs and keep its graph and weights below `save_path`; each rank
        in a folder of its own.
        """
        if not isinstance(args, tuple):
            raise BadOptionType("args must be a tuple of sample inputs", got=type(args).__name__)
        place = _place(Path(save_path))
        write_model(model, args, kwargs, dynamic, config, place)

    @classmethod
    def load_graph(cls, load_path: str | Path) -> CompiledModel:
        """The model that `save_graph` kept there."""
        place = _place(Path(load_path))
        return cls(load_air(place.folder / place.file))

    @staticmethod
    def get_cache_bin(
        func: Callable[..., Any],
        *,
        config: CompilerConfig | None = None,
        dynamic: bool = True,
        cache_dir: str | None = None,
        global_rank: int | None = None,
        tp_rank: int | None = None,
        pp_rank: int | None = None,
        ge_cache: bool = False,
        **kwargs: Any,
    ) -> str:
        """The file in which `cache_compile` would keep this."""
        _missing("CompiledModel.get_cache_bin")

    @classmethod
    def load(cls, path: str) -> CompiledModel:
        """What `save` kept there."""
        _missing("CompiledModel.load")

    def save(self, path: str) -> None:
        """Keep it there."""
        _missing("CompiledModel.save")

    def rebase(
        self, model: torch.nn.Module, global_vars: Any = None, func: Any = None, cache_dir: str | None = None
    ) -> Callable[..., Any]:
        """The compiled function, bound to this model."""
        _missing("CompiledModel.rebase")

    def readable(self, print_output: bool = True, file: str | None = None) -> str:
        """What it contains, as text."""
        _missing("CompiledModel.readable")

    def recompile(self, config: CompilerConfig) -> None:
        """Refused: what is kept was compiled with one configuration."""
        raise NotPossible("a kept compilation cannot be compiled again", next="compile the model anew")

    def __init__(self, loaded: LoadedModel | None = None) -> None:
        self._loaded = loaded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs."""
        if self._loaded is None:
            _missing("CompiledModel")
        return self._loaded(*args, **kwargs)


class ModelCacheSaver:
    """What is done to files of compilations."""

    @staticmethod
    def remove_cache(path: str | Path) -> None:
        """Delete a file, or a directory with all it contains; a link is deleted, not what it points to."""
        place = Path(path)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


class _NoGuardCompiledFunction:
    """A function compiled for given inputs and kept in a file."""

    def __init__(
        self, func: Callable[..., Any], config: CompilerConfig | None = None, dynamic: bool = True
    ) -> None:
        _missing(type(self).__name__)

    @classmethod
    def load(cls, file: str, *, self: torch.nn.Module | None = None) -> Callable[..., Any]:
        """What was kept in that file."""
        _missing(cls.__name__)


class _NoGuardCompiledMethod(_NoGuardCompiledFunction):
    """A bound method compiled for given inputs and kept in a file."""
