"""Compilations that outlive a process. Graphs are saved and loaded; for compiled functions only the names and
signatures are here.
"""

from __future__ import annotations

import shutil
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torchair.backend.cache import Cached
from torchair.backend.cache_key import How, Ranks, place_of, root_of
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.freeze import Config, freeze, with_options
from torchair.configs.option import CAPTURE_MODES
from torchair.core.degraded import Degradations
from torchair.core.errors import BadOption, BadOptionType, NotPossible, NotYet
from torchair.core.late import attribute
from torchair.core.trust import check_folder
from torchair.debug.files import rank_and_size

if TYPE_CHECKING:
    from torchair.backend.export import Place
    from torchair.backend.loaded import LoadedModel

KEYWORDS = {"backend", "options", "custom_decompositions", "ge_cache"}
"""What `cache_compile` takes beside its parameters."""
_HEAVY = {
    "Place": "torchair.backend.export",
    "write_model": "torchair.backend.export",
    "load_air": "torchair.backend.loaded",
}
"""What loads torch's compilers: not needed where everything is kept."""
_COMPILE = "torch.compile(…) with the same config compiles in each process"


def _missing(name: str, instead: str = _COMPILE) -> NoReturn:
    raise NotYet(f"{name} keeps and loads nothing in this version", next=instead)


def _late(name: str) -> Any:
    return attribute("torchair.backend", _HEAVY, name)


def _place(folder: Path) -> Place:
    rank, size = rank_and_size()
    make = _late("Place")
    if size == 1:
        return make(folder, "compiled_graph.air")
    return make(folder / f"rank_{rank}", f"compiled_graph{rank}.air")


def cache_compile(
    func: Callable[..., Any],
    *,
    config: Config | None = None,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A bound method of a module, compiled once and loaded from `cache_dir` by later processes.

    It runs without gradients. The cache is looked at when it is first called; a call that is unlike those
    before is compiled and kept, too. Further keywords: `backend`, `options`, `custom_decompositions`,
    `ge_cache`.
    """
    how = how_of(checked_method(func), config, dynamic, kwargs)
    check_root(root_of(cache_dir))
    ranks = Ranks(global_rank, tp_rank, pp_rank)
    return Cached(func, how, partial(place_of, func, how, cache_dir, ranks))


def readable_cache(cache_bin: str, print_output: bool = True, file: str | None = None) -> str:
    """What a kept compilation contains, as text; in `file` with the generated source."""
    path = Path(cache_bin)
    if path.is_symlink() or not path.is_file():
        raise BadOption(f"{cache_bin} is no file, or a link to one", next="name a compiled_module")
    return CompiledModel.load(cache_bin).readable(print_output, file)


def checked_method(func: Any) -> Any:
    """The bound method of a module, if it is one."""
    if not isinstance(func, types.MethodType):
        raise BadOption("cache_compile takes a bound method of a module", got=repr(func))
    if not isinstance(func.__self__, torch.nn.Module):
        raise BadOption("cache_compile takes a method of a torch.nn.Module", got=repr(func.__self__)[:80])
    return func


def how_of(func: Any, config: Config | None, dynamic: bool, given: Mapping[str, Any]) -> How:
    """How it is to be compiled, of all the ways to say so."""
    backend = given.get("backend")
    if backend is not None:
        of_backend = getattr(backend, "keywords", {}).get("compiler_config")
        if of_backend is None:
            raise BadOption("backend must be what get_npu_backend returns", got=repr(backend)[:80])
        if config is not None and config != of_backend:
            raise BadOption("config and the config of backend differ", next="give one of them")
        config = of_backend
    if config is not None and not isinstance(config, Config):
        raise BadOptionType("config must be a CompilerConfig", got=repr(config)[:80])
    config = with_options(CompilerConfig() if config is None else config, given.get("options"))
    parts = dict(getattr(backend, "keywords", {}).get("decompositions", {}))
    parts |= given.get("custom_decompositions") or {}
    captures = freeze(config)["mode"] in CAPTURE_MODES
    if captures and given.get("ge_cache"):
        Degradations().add("ge_cache has no effect in capture mode: programs are kept in any case")
    for name in sorted(set(given) - KEYWORDS):
        Degradations().add(f"cache_compile has no keyword {name!r}: it has no effect")
    marks = ("aclgraphcache",) if captures else ("gecache",) if given.get("ge_cache") else ()
    return How(config, bool(dynamic), parts, marks)


def check_root(root: Path) -> None:
    """`NotTrusted`, a ValueError, where the directory is there and not the user's alone."""
    if root.exists():
        check_folder(root.stat(), root, is_root=True)


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
        _late("write_model")(model, args, kwargs, dynamic, config, place)

    @classmethod
    def load_graph(cls, load_path: str | Path) -> CompiledModel:
        """The model that `save_graph` kept there."""
        place = _place(Path(load_path))
        return cls(_late("load_air")(place.folder / place.file))

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
