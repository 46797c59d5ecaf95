"""The program cache: optimized programs are stored on disk, and the next process with the same graph loads
them.

A key contains everything the code depends on: the graph with its constants, the known facts of its inputs,
the compile options, this package, torch and the machine. Entries are code: `core/storage/artifact_store.py`
returns only undamaged files that no other user could have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.backend.service.request import TensorMetadata
from torchair.backend.service.torch_state import TorchState
from torchair.codegen import CodegenOptions
from torchair.codegen.base.graph_prep import attribute
from torchair.codegen.native.native_library import graph_text
from torchair.core.environment import text_of
from torchair.core.errors import AirError, NotPossible
from torchair.core.fingerprint.machine import device_facts, processor, sources, tensor_facts, torch_facts
from torchair.core.log import logger
from torchair.core.storage.artifact_store import ArtifactStore
from torchair.core.storage.serialization import pack, unpack
from torchair.core.torch_private.compilers.inductor import all_options
from torchair.core.torch_private.fake.symbol_table import Symbols

FILE = "program"
FULL = 0.8
"""The share of the size limit that remains after entries are evicted."""


def cache_dir() -> Path:
    """Return the directory of the program cache; raise `NotPossible` if there is no home directory."""
    if named := text_of("TORCHAIR_PROGRAMS"):
        return Path(named)
    home = text_of("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):  # the system does not know this user
        raise NotPossible("the user has no home directory", next="set HOME or TORCHAIR_PROGRAMS")
    return Path(home, "torchair", "programs")


@dataclass(frozen=True)
class ProgramKey:
    """The inputs of a compile that decide its result."""

    gm: fx.GraphModule
    likes: list[Any]
    how: CodegenOptions
    kinds: tuple[str, ...]
    symbols: Symbols
    surroundings: TorchState

    def facts(self) -> dict[str, str]:
        """Return everything the program depends on, as text."""
        devices = {like.device for like in self.likes if isinstance(like, TensorMetadata)}
        return {
            "graph": digest_of(_graph_lines(self.gm)),
            "inputs": digest_of(map(repr, self.likes)),
            "sizes": digest_of(self.symbols.lines()),
            "how": ", ".join(f"{each.name}={getattr(self.how, each.name)}" for each in fields(self.how)),
            "codegen": " ".join(self.kinds),
            "surroundings": str(self.surroundings),
            "devices": ", ".join(sorted(map(device_facts, devices))),
            **process_facts(),
        }


def process_facts() -> dict[str, str]:
    """Return the parts of the key that all generated code depends on."""
    return {
        "options": all_options(),
        "processor": processor(),
        "compiler": text_of("CXX"),
        "torch": torch_facts(),
        "python": sys.version.partition(" ")[0],
        "torchair": sources(),
        "tensors": tensor_facts(),
    }


@dataclass(frozen=True)
class ProgramCacheEntry:
    """The cache entry of one compile result."""

    store: ArtifactStore
    key: str
    facts: dict[str, str]
    most_bytes: int

    @staticmethod
    def of(facts: dict[str, str], most_bytes: int) -> ProgramCacheEntry | None:
        """Return the entry for these key parts, which may not exist yet; warn and return None if there is no
        cache directory.
        """
        try:
            root = cache_dir()
        except AirError as error:
            ProgramCacheEntry._warn(error)
            return None
        return ProgramCacheEntry(
            ArtifactStore(root, FILE),
            digest_of(f"{name} {text}" for name, text in facts.items())[:32],
            facts,
            most_bytes,
        )

    def get(self) -> Any:
        """Return the cached result, or None on a miss; warn if the entry is untrusted or unreadable."""
        try:
            files = self.store.get(self.key)
            return None if files is None else unpack(files[FILE])
        except (AirError, OSError, KeyError) as error:
            self._warn(error)
            return None

    @property
    def is_there(self) -> bool:
        """Whether the entry exists; False if it is not accessible."""
        return os.path.exists(self.store.path(self.key))

    def put(self, result: Any) -> None:
        """Store a result. If that fails, the next process compiles it again."""
        try:
            data = pack(result)
        except NotPossible as error:
            logger.debug("cannot cache a %s: %s", type(result).__name__, error)
            return
        try:
            self.store.put(self.key, {FILE: data}, self.facts)
            if _size(self.store.root) > self.most_bytes:
                self.store.prune(int(self.most_bytes * FULL))
        except (AirError, OSError) as error:
            self._warn(error)

    @staticmethod
    def _warn(error: Exception) -> None:
        why = error.what if isinstance(error, AirError) else str(error)
        if logger.is_new(f"the program cache is not used: {why}"):
            logger.warning("the program cache is not used, so each process compiles again: %s", why)


def _graph_lines(gm: fx.GraphModule) -> Iterator[str]:
    yield from graph_text(gm, by_place=True)
    for node in gm.graph.find_nodes(op="get_attr"):
        value = attribute(gm, str(node.target))
        if isinstance(value, torch.Tensor):
            yield f"{node.target} {hashlib.sha256(pack(value)).hexdigest()}"


def digest_of(lines: Iterable[str]) -> str:
    """Return the SHA-256 digest of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _size(root: Path) -> int:
    """Return the bytes of all entries. `put` calls this each time, and there may be tens of thousands."""
    total = 0
    with os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has evicted it
                total += os.stat(os.path.join(entry.path, FILE)).st_size
    return total
