"""Compilations that outlive a process: methods of modules, functions, and graphs without their code."""

from __future__ import annotations

import importlib
import json
import shutil
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchair.backend.cache.compiled_method import CachedMethod
from torchair.backend.cache.entry import files_of, meta_of, readable, variants_of
from torchair.backend.cache.key import CompileArgs, RankInfo, location_of, root_of
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import CAPTURE_MODES
from torchair.configs.resolve import Config, freeze, with_options
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType, BadPath, NotPossible
from torchair.core.fingerprint.atomic_files import atomic_write, make_parents
from torchair.core.fingerprint.file_permissions import (
    OWN_FILE,
    check_file,
    check_folder,
    own_folder,
    read_own,
)
from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.core.storage.artifact_store import StoredEntry, packed, unpacked
from torchair.debug.dumps.files import rank_and_size

if TYPE_CHECKING:
    from torchair.backend.export.loader import LoadedModel
    from torchair.backend.export.writer import OutputPath

KEYWORDS = {"backend", "options", "custom_decompositions", "ge_cache"}
"""What `cache_compile` takes beside its parameters."""
_HEAVY = {
    "OutputPath": "torchair.backend.export.writer",
    "write_model": "torchair.backend.export.writer",
    "load_air": "torchair.backend.export.loader",
}
"""What loads torch's compilers: not needed where everything is kept."""


def _late(name: str) -> Any:
    return lazy_getattr("torchair.backend", _HEAVY, name)


def _place(folder: Path) -> OutputPath:
    rank, size = rank_and_size()
    make = _late("OutputPath")
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
    how = how_of(config, dynamic, kwargs)
    root = root_of(cache_dir)
    check_root(root)
    ranks = RankInfo(global_rank, tp_rank, pp_rank)
    # As text without the working directory, which may be another one in the first call.
    find = partial(location_of, how=how, cache_dir=str(root), ranks=ranks)
    return CachedMethod(checked_method(func), how, find)


def readable_cache(cache_bin: str, print_output: bool = True, file: str | None = None) -> str:
    """What a kept compilation contains, as text; in `file` with the generated source."""
    path = Path(cache_bin)
    if path.is_symlink() or not path.is_file():
        raise BadOption(f"{cache_bin} is no file, or a link to one", next="name a compiled_module")
    return CompiledModel.load(cache_bin).readable(print_output, file)


def checked_method(func: Any) -> Any:
    """The bound method of a module, if it is one."""
    if not isinstance(func, types.MethodType | types.BuiltinMethodType):
        raise BadOption("cache_compile takes a bound method of a module", got=repr(func))
    if not isinstance(func.__self__, torch.nn.Module):
        raise BadOption("cache_compile takes a method of a torch.nn.Module", got=repr(func.__self__)[:80])
    return func


def how_of(config: Config | None, dynamic: bool, given: Mapping[str, Any]) -> CompileArgs:
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
        Diagnostics().add("ge_cache has no effect in capture mode: programs are kept in any case")
    for name in sorted(set(given) - KEYWORDS):
        Diagnostics().add(f"cache_compile has no keyword {name!r}: it has no effect")
    marks = ("aclgraphcache",) if captures else ("gecache",) if given.get("ge_cache") else ()
    return CompileArgs(config, bool(dynamic), parts, marks)


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
        config: Config | None = None,
        dynamic: bool = True,
        cache_dir: str | None = None,
        global_rank: int | None = None,
        tp_rank: int | None = None,
        pp_rank: int | None = None,
        ge_cache: bool = False,
        **kwargs: Any,
    ) -> str:
        """The file in which `cache_compile` keeps this."""
        how = how_of(config, dynamic, {**kwargs, "ge_cache": ge_cache})
        ranks = RankInfo(global_rank, tp_rank, pp_rank)
        return str(location_of(checked_method(func), how, cache_dir, ranks).path)

    @classmethod
    def load(cls, path: str) -> CompiledModel:
        """What `save`, or `cache_compile`, kept there. `PermissionError` where somebody else may have written
        it, `ValueError` where it is damaged or of another version.
        """
        place = Path(path).resolve()
        with own_folder(place.parent) as folder:
            try:
                data = read_own(folder, place.name, place)
            except FileNotFoundError as error:
                raise BadPath(f"there is no file {path}") from error
        entry = unpacked(data, "", str(place))
        meta_of(entry.files)
        return cls(entry=entry)

    def save(self, path: str) -> None:
        """Keep it there."""
        entry = self._kept()
        place = Path(path)
        make_parents(place.parent)
        with atomic_write(place, OWN_FILE) as out:
            out.write(packed(entry.files, entry.facts))

    def rebase(
        self,
        model: torch.nn.Module,
        global_vars: Mapping[str, Any] | None = None,
        func: Any = None,
        cache_dir: str | None = None,
    ) -> Callable[..., Any]:
        """The compiled method, bound to this model: `func`, or the method of the same name, with these global
        variables if any are given. Calls that it was not compiled for are compiled, and kept below
        `cache_dir` if that is given.
        """
        entry = self._kept()
        name = str(meta_of(entry.files)["function"]).rpartition(".")[2]
        method = func if func is not None else getattr(model, name, None)
        if method is None:
            raise BadOption(f"the model has no method {name!r}", next="give func=")
        function = getattr(method, "__func__", method)
        if global_vars is not None:
            function = with_globals(function, global_vars)
        how = how_of_entry(entry)
        root = None if cache_dir is None else str(root_of(cache_dir))
        find = None if root is None else partial(location_of, how=how, cache_dir=root, ranks=RankInfo())
        return Kept(types.MethodType(function, model), how, find, variants_of(entry.files))

    def readable(self, print_output: bool = True, file: str | None = None) -> str:
        """What it contains, as text; in `file` with the generated source below it."""
        entry = self._kept()
        text, source = readable(entry.files, entry.facts)
        if print_output:
            print(text)
        if file is not None:
            write_readable(Path(file), text, source)
        return text

    def recompile(self, config: CompilerConfig) -> None:
        """Refused: what is kept was compiled with one configuration."""
        raise NotPossible("a kept compilation cannot be compiled again", next="compile the model anew")

    def __init__(self, loaded: LoadedModel | None = None, *, entry: StoredEntry | None = None) -> None:
        self._loaded = loaded
        self._entry = entry

    def _kept(self) -> StoredEntry:
        if self._entry is None:
            raise NotPossible(
                "this is a saved graph, and no kept compilation", next="CompiledModel.load(path)"
            )
        return self._entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs."""
        if self._loaded is None:
            raise NotPossible(
                "a kept compilation runs on a model's weights", next="CompiledModel.rebase(model)"
            )
        return self._loaded(*args, **kwargs)


class Kept(CachedMethod):
    """A method whose variants are given."""

    def __init__(self, method: Any, how: CompileArgs, find: Any, rows: Sequence[Mapping[str, bytes]]) -> None:
        super().__init__(method, how, find)
        self._rows = rows

    def load(self) -> None:
        """Those that were given."""
        rows, self._rows = self._rows, ()
        self.take(rows)


def how_of_entry(entry: StoredEntry) -> CompileArgs:
    """How an entry was compiled; functions among its options are left out, and told."""
    meta = meta_of(entry.files)
    options = dict[str, Any](meta["config"]["options"])
    functions = [path for path, value in options.items() if "$callable" in json.dumps(value)]
    for path in functions:
        del options[path]
        Diagnostics().add(f"{path} is a function, which is not kept: what is compiled now is without it")
    config = CompilerConfig.from_json(json.dumps({**meta["config"], "options": options}))
    return how_of(config, meta["dynamic"], {})


def with_globals(function: Any, variables: Mapping[str, Any]) -> Any:
    """The function with other global variables."""
    made = types.FunctionType(
        function.__code__, dict(variables), function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__ = function.__module__
    return made


def write_readable(path: Path, text: str, source: str) -> None:
    """The text as comments, and the source; a file that is there must be the user's own."""
    if path.is_symlink():
        raise BadOption(f"{path} is a link", next="name a file")
    if path.exists():
        check_file(path.stat(), path)
    make_parents(path.parent)
    with atomic_write(path, OWN_FILE) as out:
        out.write("".join(f"# {line}\n" for line in text.splitlines()).encode())
        out.write(source.encode())


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

    def __init__(self, func: Callable[..., Any], config: Config | None = None, dynamic: bool = True) -> None:
        self._func = self.checked(func)
        self._how = how_of(config, dynamic, {})
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._is_used = False

    @classmethod
    def checked(cls, func: Any) -> Any:
        """A function that a module has."""
        if not isinstance(func, types.FunctionType):
            raise BadOption("this takes a function", got=repr(func)[:80])
        return func

    def for_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """The call to compile for."""
        if self._is_used:
            raise NotPossible("it was used before", next="make another one")
        self._inputs = args, kwargs
        return self

    def save_to(self, file: str) -> None:
        """Compile, run, and keep it in this file."""
        if self._inputs is None or self._is_used:
            raise NotPossible("there are no inputs to compile for", next="for_inputs(…).save_to(file)")
        if Path(file).exists() or Path(file).is_symlink():
            raise BadOption(f"{file} is there already", next="remove it, or name another")
        self._is_used = True
        made = CachedMethod(self._func, self._how, None)
        args, kwargs = self._inputs
        made(*args, **kwargs)
        function = getattr(self._func, "__func__", self._func)
        files = files_of(function, self._how, [each.files() for each in made.variants])
        CompiledModel(entry=StoredEntry("", files, {}, 0)).save(file)

    @classmethod
    def load(cls, file: str, *, self: torch.nn.Module | None = None) -> Callable[..., Any]:
        """What was kept in that file. Calls that it was not compiled for are refused."""
        entry = CompiledModel.load(file)._kept()
        meta = meta_of(entry.files)
        if self is None:
            found: Any = importlib.import_module(meta["module"])
            for part in str(meta["function"]).split("."):
                found = getattr(found, part, None)
        else:
            found = getattr(self, str(meta["function"]).rpartition(".")[2], None)
        if found is None:
            raise NotPossible(f"there is no {meta['function']} in {meta['module']}")
        kept = Kept(found, how_of_entry(entry), None, variants_of(entry.files))
        kept.compiles = False
        return kept


class _NoGuardCompiledMethod(_NoGuardCompiledFunction):
    """A bound method compiled for given inputs and kept in a file."""

    @classmethod
    def checked(cls, func: Any) -> Any:
        """A method of a module."""
        return checked_method(func)
