"""The location and the key of a cache entry: everything a compile depends on before tracing.

Facts that only tracing finds (inlined code, values that were read) are stored inside the entry, as guards and
sources.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchair.configs.resolve import Config, cache_key_paths, freeze
from torchair.core.environment import text_of
from torchair.core.errors import BadOption, NotPossible
from torchair.core.fingerprint.machine import device_facts, processor, sources, tensor_facts, torch_facts
from torchair.core.fingerprint.python_objects import behaviour
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.core.storage.artifact_store import ArtifactStore
from torchair.core.torch_private.dynamo.config import torch_options
from torchair.debug.dumps.files import rank_and_size

FILE = "compiled_module"
FOLDER = ".torchair_cache"


@dataclass(frozen=True)
class RankInfo:
    """The ranks of this process. They override those of `torch.distributed`."""

    global_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None

    def folder(self) -> str:
        """Return the part of the path that identifies this process; empty for a single process."""
        rank, size = rank_and_size()
        own = rank if self.global_rank is None else self.global_rank
        parts = [f"world{size}global_rank{own}"] if size > 1 else []
        parts += [f"{name}{value}" for name, value in self._given() if value is not None]
        return "_".join(parts)

    def _given(self) -> tuple[tuple[str, int | None], ...]:
        return ("tp_rank", self.tp_rank), ("pp_rank", self.pp_rank)


@dataclass(frozen=True)
class CompileArgs:
    """The configuration that a method is compiled with."""

    config: Config
    dynamic: bool = True
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict[Any, Callable[..., Any]])
    marks: tuple[str, ...] = ()
    """Additional parts of the directory name."""


@dataclass(frozen=True)
class CacheLocation:
    """The location of an entry: its store, its key, and the facts that the key is computed from."""

    store: ArtifactStore
    key: str
    facts: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The path of the entry's file."""
        return self.store.path(self.key)


def location_of(method: Any, how: CompileArgs, cache_dir: str | None, ranks: RankInfo) -> CacheLocation:
    """Return the location of the cache entry of a bound method."""
    model = method.__self__
    facts = facts_of(model, method.__name__, how)
    digest = hashlib.md5(repr(sorted(facts.items())).encode(), usedforsecurity=False).hexdigest()
    title = "_".join(
        [_file_name(type(model).__name__), "dynamic" if how.dynamic else "static", *how.marks, digest]
    )
    parts = [title, ranks.folder(), _file_name(method.__name__)]
    return CacheLocation(ArtifactStore(root_of(cache_dir), FILE), "/".join(filter(None, parts)), facts)


def root_of(cache_dir: str | None) -> Path:
    """Return the directory of all entries: `cache_dir`, `TORCHAIR_CACHE_HOME`, or the default."""
    if cache_dir is not None and not cache_dir:
        raise BadOption("cache_dir is an empty string", next="omit cache_dir, or pass a directory")
    return Path(cache_dir or text_of("TORCHAIR_CACHE_HOME") or FOLDER).expanduser().resolve()


def facts_of(model: torch.nn.Module, name: str, how: CompileArgs) -> dict[str, str]:
    """Return everything that can change the result, as text."""
    options = freeze(how.config)
    paths = sorted(cache_key_paths() & set(options))
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "method": name,
        "model": hashlib.md5(str(model).encode(), usedforsecurity=False).hexdigest(),
        "sizes": "dynamic" if how.dynamic else "static",
        "options": ",".join(f"{path}={_encode(options[path], path)}" for path in paths),
        "decompositions": ",".join(
            sorted(f"{op}={_encode(fn, str(op))}" for op, fn in how.decompositions.items())
        ),
        "extensions": ",".join(sorted(f"{name}={_encode(fn, name)}" for name, fn in EXTENSIONS.items())),
        "device": ", ".join(sorted(set(map(device_facts, _devices(model))))),
        **facts_of_process(),
    }


def facts_of_process() -> dict[str, str]:
    """Return the facts that do not depend on the model."""
    return {
        "torch": torch_facts(),
        "torch options": torch_options(),
        "python": platform.python_version(),
        "processor": processor(),
        "torchair": sources(),
        "tensors": tensor_facts(),
    }


def _encode(value: Any, name: str) -> str:
    """Return the text of an option's value; for a function, a text that identifies its code."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_encode(each, name) for each in value)}]"
    if not callable(value):
        return repr(value)
    try:
        return " ".join(map(str, behaviour(getattr(value, "__wrapped__", value))))
    except NotPossible as error:
        raise NotPossible(f"another process cannot identify the function of {name}: {error.what}") from error


def _devices(model: torch.nn.Module) -> Iterable[torch.device]:
    tensors = (*model.parameters(), *model.buffers())
    return {tensor.device for tensor in tensors}


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+-]", "_", name)
