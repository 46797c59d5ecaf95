"""Cache compilations across processes: methods of modules, functions, and graphs without their code."""

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
"""Keywords that `cache_compile` accepts in addition to its parameters."""
_HEAVY = {
    "OutputPath": "torchair.backend.export.writer",
    "write_model": "torchair.backend.export.writer",
    "load_air": "torchair.backend.export.loader",
}
"""Names whose modules import torch's compilers, which loading a cached compilation does not need."""


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
    """Compile a bound method of a module once, and load it from the cache in later processes.

    The method runs without gradients. Its first call reads the cache. A call that no cached variant matches
    is compiled and added to the cache.

    Args:
        func: A bound method of a `torch.nn.Module`.
        config: The options; None for the defaults of graph mode.
        dynamic: Whether one compilation serves several sizes.
        cache_dir: The cache directory; None for `TORCHAIR_CACHE_HOME`, or `.torchair_cache`.
        global_rank: The rank of this process; None for the one of `torch.distributed`.
        tp_rank: The tensor-parallel rank, as a part of the entry's name.
        pp_rank: The pipeline-parallel rank, as a part of the entry's name.
        **kwargs: `backend` (of `get_npu_backend`), `options` (flat option names), `custom_decompositions`,
            `ge_cache`.

    Returns:
        A callable with the signature of the method.

    Raises:
        BadOption: `func` is not a bound method of a module, or an option is invalid.
        NotTrusted: Other users can write to the cache directory.

    Example:
        >>> model.decode = torchair.inference.cache_compile(model.decode, cache_dir="cache")
        >>> model.decode(tokens)
    """
    how = how_of(config, dynamic, kwargs)
    root = root_of(cache_dir)
    check_root(root)
    ranks = RankInfo(global_rank, tp_rank, pp_rank)
    # As text without the working directory, which may be another one in the first call.
    find = partial(location_of, how=how, cache_dir=str(root), ranks=ranks)
    return CachedMethod(checked_method(func), how, find)


def readable_cache(cache_bin: str, print_output: bool = True, file: str | None = None) -> str:
    """Describe a cached compilation as text.

    Args:
        cache_bin: The path of a `compiled_module` file.
        print_output: Whether to print the text.
        file: A file to write the text and the generated source to.

    Returns:
        The text.

    Raises:
        BadOption: `cache_bin` is not a file, or is a symbolic link.
    """
    path = Path(cache_bin)
    if path.is_symlink() or not path.is_file():
        raise BadOption(f"{cache_bin} is not a regular file", next="pass the path of a compiled_module file")
    return CompiledModel.load(cache_bin).readable(print_output, file)


def checked_method(func: Any) -> Any:
    """Return the bound method of a module; raise `BadOption` if it is not one."""
    usage = "for example cache_compile(model.forward)"
    if not isinstance(func, types.MethodType | types.BuiltinMethodType):
        raise BadOption("cache_compile() expects a bound method of a module", got=repr(func), next=usage)
    if not isinstance(func.__self__, torch.nn.Module):
        got = repr(func.__self__)[:80]
        raise BadOption("cache_compile() expects a method of a torch.nn.Module", got=got, next=usage)
    return func


def how_of(config: Config | None, dynamic: bool, given: Mapping[str, Any]) -> CompileArgs:
    """Combine the config with the keywords `backend`, `options` and `custom_decompositions`."""
    backend = given.get("backend")
    if backend is not None:
        of_backend = getattr(backend, "keywords", {}).get("compiler_config")
        if of_backend is None:
            raise BadOption("'backend' must be a result of get_npu_backend()", got=repr(backend)[:80])
        if config is not None and config != of_backend:
            raise BadOption("'config' and the config of 'backend' differ", next="pass only one of them")
        config = of_backend
    if config is not None and not isinstance(config, Config):
        raise BadOptionType("'config' must be a CompilerConfig", got=repr(config)[:80])
    config = with_options(CompilerConfig() if config is None else config, given.get("options"))
    parts = dict(getattr(backend, "keywords", {}).get("decompositions", {}))
    parts |= given.get("custom_decompositions") or {}
    captures = freeze(config)["mode"] in CAPTURE_MODES
    if captures and given.get("ge_cache"):
        Diagnostics().add("ge_cache has no effect in capture mode: programs are always cached")
    for name in sorted(set(given) - KEYWORDS):
        Diagnostics().add(f"cache_compile() has no keyword {name!r}: it is ignored")
    marks = ("aclgraphcache",) if captures else ("gecache",) if given.get("ge_cache") else ()
    return CompileArgs(config, bool(dynamic), parts, marks)


def check_root(root: Path) -> None:
    """Raise `NotTrusted`, a ValueError, if the directory exists and other users can write to it."""
    if root.exists():
        check_folder(root.stat(), root, is_root=True)


class CompiledModel:
    """A compiled model in a file.

    A graph that `save_graph` wrote is called like the model, without its code. A compilation that
    `cache_compile` wrote is bound to a model by `rebase`.
    """

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
        """Trace a model and save its graph and weights.

        Args:
            model: The module.
            args: Sample inputs.
            dynamic: Whether the graph accepts other sizes than those of the sample inputs.
            config: The options; the mode must be graph mode.
            save_path: The directory; with several processes, each rank has a subdirectory.
            **kwargs: Sample keyword inputs.

        Raises:
            BadOptionType: `args` is not a tuple.
            NotPossible: The model cannot be exported.
        """
        if not isinstance(args, tuple):
            raise BadOptionType("'args' must be a tuple of sample inputs", got=type(args).__name__)
        place = _place(Path(save_path))
        _late("write_model")(model, args, kwargs, dynamic, config, place)

    @classmethod
    def load_graph(cls, load_path: str | Path) -> CompiledModel:
        """Load the model that `save_graph` wrote to this directory."""
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
        """Return the path of the file in which `cache_compile` caches this method with these arguments."""
        how = how_of(config, dynamic, {**kwargs, "ge_cache": ge_cache})
        ranks = RankInfo(global_rank, tp_rank, pp_rank)
        return str(location_of(checked_method(func), how, cache_dir, ranks).path)

    @classmethod
    def load(cls, path: str) -> CompiledModel:
        """Load the file of `save` or `cache_compile`.

        Raises:
            BadPath: The file does not exist.
            PermissionError: Another user could have written the file.
            ValueError: The file is corrupted or has another version.
        """
        place = Path(path).resolve()
        with own_folder(place.parent) as folder:
            try:
                data = read_own(folder, place.name, place)
            except FileNotFoundError as error:
                raise BadPath(
                    f"there is no file {path}", next="pass the path of a compiled_module"
                ) from error
        entry = unpacked(data, "", str(place))
        meta_of(entry.files)
        return cls(entry=entry)

    def save(self, path: str) -> None:
        """Write the compilation to a file."""
        entry = self._stored()
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
        """Bind the compiled method to a model. Calls that no variant matches are compiled.

        Args:
            model: The model with the weights to use.
            global_vars: The global variables of the method; None for its own.
            func: The method; None for the model's method of the same name.
            cache_dir: A directory in which new variants are cached; None to cache none.

        Returns:
            The compiled method.

        Raises:
            BadOption: The model has no such method.
        """
        entry = self._stored()
        name = str(meta_of(entry.files)["function"]).rpartition(".")[2]
        method = func if func is not None else getattr(model, name, None)
        if method is None:
            raise BadOption(f"the model has no method {name!r}", next="pass the method as func=")
        function = getattr(method, "__func__", method)
        if global_vars is not None:
            function = with_globals(function, global_vars)
        how = how_of_entry(entry)
        root = None if cache_dir is None else str(root_of(cache_dir))
        find = None if root is None else partial(location_of, how=how, cache_dir=root, ranks=RankInfo())
        return CachedCallable(types.MethodType(function, model), how, find, variants_of(entry.files))

    def readable(self, print_output: bool = True, file: str | None = None) -> str:
        """Return the content as text; `file` also gets the generated source."""
        entry = self._stored()
        text, source = readable(entry.files, entry.facts)
        if print_output:
            print(text)
        if file is not None:
            write_readable(Path(file), text, source)
        return text

    def recompile(self, config: CompilerConfig) -> None:
        """Raise `NotPossible`: a saved compilation has a fixed configuration."""
        raise NotPossible(
            "a saved compilation cannot be recompiled", next="compile the model with the other config"
        )

    def __init__(self, loaded: LoadedModel | None = None, *, entry: StoredEntry | None = None) -> None:
        self._loaded = loaded
        self._entry = entry

    def _stored(self) -> StoredEntry:
        if self._entry is None:
            raise NotPossible(
                "a graph of save_graph() does not support this method",
                next="load a compilation with CompiledModel.load(path)",
            )
        return self._entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; raise `NotPossible` for a compilation, which has no weights."""
        if self._loaded is None:
            raise NotPossible(
                "a saved compilation has no weights and cannot be called",
                next="bind it to a model with CompiledModel.rebase(model)",
            )
        return self._loaded(*args, **kwargs)


class CachedCallable(CachedMethod):
    """A cached method whose variants are given."""

    def __init__(self, method: Any, how: CompileArgs, find: Any, rows: Sequence[Mapping[str, bytes]]) -> None:
        super().__init__(method, how, find)
        self._rows = rows

    def load(self) -> None:
        """Add the given variants."""
        rows, self._rows = self._rows, ()
        self.take(rows)


def how_of_entry(entry: StoredEntry) -> CompileArgs:
    """Return the configuration of an entry, and warn about options that are functions, which are dropped."""
    meta = meta_of(entry.files)
    options = dict[str, Any](meta["config"]["options"])
    functions = [path for path, value in options.items() if "$callable" in json.dumps(value)]
    for path in functions:
        del options[path]
        Diagnostics().add(f"option {path} is a function, which is not saved: new compiles do not use it")
    config = CompilerConfig.from_json(json.dumps({**meta["config"], "options": options}))
    return how_of(config, meta["dynamic"], {})


def with_globals(function: Any, variables: Mapping[str, Any]) -> Any:
    """Copy a function with other global variables."""
    copy = types.FunctionType(
        function.__code__, dict(variables), function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    copy.__module__ = function.__module__
    return copy


def write_readable(path: Path, text: str, source: str) -> None:
    """Write the text as comments, and the source. An existing file must belong to the user."""
    if path.is_symlink():
        raise BadOption(f"cannot write to {path}: it is a symbolic link", next="pass the path of a file")
    if path.exists():
        check_file(path.stat(), path)
    make_parents(path.parent)
    with atomic_write(path, OWN_FILE) as out:
        out.write("".join(f"# {line}\n" for line in text.splitlines()).encode())
        out.write(source.encode())


class ModelCacheSaver:
    """Remove files of compilations."""

    @staticmethod
    def remove_cache(path: str | Path) -> None:
        """Delete a file, or a directory with all it contains; a link is deleted, not what it points to."""
        place = Path(path)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


class _NoGuardCompiledFunction:
    """A function that is compiled for given inputs and saved to a file."""

    def __init__(self, func: Callable[..., Any], config: Config | None = None, dynamic: bool = True) -> None:
        self._func = self.checked(func)
        self._how = how_of(config, dynamic, {})
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._is_used = False

    @classmethod
    def checked(cls, func: Any) -> Any:
        """Return the function; raise `BadOption` if it is not a function."""
        if not isinstance(func, types.FunctionType):
            raise BadOption("expected a function", got=repr(func)[:80])
        return func

    def for_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Set the call to compile for."""
        if self._is_used:
            raise NotPossible("for_inputs() cannot be called after save_to()", next="create a new object")
        self._inputs = args, kwargs
        return self

    def save_to(self, file: str) -> None:
        """Compile the function, run it, and save it to this file."""
        if self._inputs is None or self._is_used:
            raise NotPossible(
                "save_to() has no inputs to compile for", next="call for_inputs(...).save_to(file)"
            )
        if Path(file).exists() or Path(file).is_symlink():
            raise BadOption(f"{file} already exists", next="remove it, or choose another path")
        self._is_used = True
        method = CachedMethod(self._func, self._how, None)
        args, kwargs = self._inputs
        method(*args, **kwargs)
        function = getattr(self._func, "__func__", self._func)
        files = files_of(function, self._how, [each.files() for each in method.variants])
        CompiledModel(entry=StoredEntry("", files, {}, 0)).save(file)

    @classmethod
    def load(cls, file: str, *, self: torch.nn.Module | None = None) -> Callable[..., Any]:
        """Load a file of `save_to`. A call that it was not compiled for raises `BadCall`."""
        entry = CompiledModel.load(file)._stored()
        meta = meta_of(entry.files)
        if self is None:
            found: Any = importlib.import_module(meta["module"])
            for part in str(meta["function"]).split("."):
                found = getattr(found, part, None)
        else:
            found = getattr(self, str(meta["function"]).rpartition(".")[2], None)
        if found is None:
            raise NotPossible(
                f"module {meta['module']} has no function {meta['function']}, which {file} was compiled from",
                next="define the function, or compile it again",
            )
        loaded = CachedCallable(found, how_of_entry(entry), None, variants_of(entry.files))
        loaded.compiles = False
        return loaded


class _NoGuardCompiledMethod(_NoGuardCompiledFunction):
    """A bound method that is compiled for given inputs and saved to a file."""

    @classmethod
    def checked(cls, func: Any) -> Any:
        """Return the method; raise `BadOption` if it is not a bound method of a module."""
        return checked_method(func)
