"""What is asked of hundreds of tensors before every replay: in C++ once that is built, until then in Python.

The extension is built in the background when a runner first wants it (a quarter of a minute), kept on disk,
and loaded at once from then on. Without a compiler everything works, only slower.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from array import array
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchair.core.folder import cache_folder
from torchair.core.log import logger
from torchair.core.torch_private import get_cpp_compiler, same_addresses

NAME = "torchair_quick"
SOURCE = Path(__file__).with_suffix(".cpp")
BUILD_SECONDS = 300

_lock = threading.Lock()
_asked = False
_extension: ModuleType | None = None


class Addresses:
    """Where some arguments of a call lie."""

    def __init__(self, indices: Sequence[int], args: Sequence[Any]) -> None:
        self._indices = list(indices)
        self._known: list[int | None] = [None] * len(args)
        pairs = array("Q")
        for index in indices:
            address = self._known[index] = args[index].data_ptr()
            pairs.extend((index, address))
        self.pairs = pairs.tobytes()

    def read(self, args: Sequence[Any]) -> list[int]:
        """Where they are in this call."""
        return [args[index].data_ptr() for index in self._indices]

    def match(self, args: list[Any]) -> bool:
        """Is each where it was?"""
        if _extension is not None:
            return _extension.same_addresses(args, self.pairs)
        return same_addresses(args, self._known, self._indices)

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Indices of those that are somewhere else now."""
        return [index for index in self._indices if args[index].data_ptr() != self._known[index]]


class Written:
    """Arguments that a call writes: autograd compares their versions."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)
        self._packed = array("Q", indices).tobytes()

    def raise_versions(self, args: Sequence[Any]) -> None:
        """They were written once more."""
        if _extension is not None:
            _extension.raise_versions(args, self._packed)
        else:
            torch.autograd.graph.increment_version([args[index] for index in self._indices])


def likeness(
    addresses: Addresses, shapes: list[tuple[int, tuple[int, ...]]], outputs: list[tuple[Any, Any]]
) -> Any:
    """What must hold again for a recording to serve another call: addresses, shapes of inputs by index, and
    that nobody holds its outputs, pairs whose second part is a storage. None without the extension.
    """
    return None if _extension is None else _extension.likeness(addresses.pairs, shapes, outputs)


def is_like(args: Sequence[Any], known: Any) -> bool:
    """Is this a call like the one the likeness is of, and without gradients?"""
    assert _extension is not None, "it made the likeness"
    return _extension.is_like(args, known)


def want() -> None:
    """Use the extension as soon as it is there: now if it was built before, else built in the background."""
    global _asked
    with _lock:
        if _asked:
            return
        _asked = True
    try:
        path = library()
    except Exception as error:
        _stay_with_python(error)
        return
    try:
        if path.exists():
            load(path)
            return
    except ImportError:
        logger.warning("%s is damaged and is made again", path)
    threading.Thread(target=_build_and_load, args=(path,), name="torchair quick", daemon=True).start()


def _build_and_load(path: Path) -> None:
    try:
        build(path)
        load(path)
    except Exception as error:
        _stay_with_python(error)


def _stay_with_python(error: Exception) -> None:
    logger.info("replays ask about their inputs in Python: %s", error)


def load(path: Path) -> None:
    """Take this library into use."""
    global _extension
    loader = ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _extension = module


def library() -> Path:
    """Where the library for this source, torch and Python is kept."""
    facts = f"{torch.__version__} {sys.implementation.cache_tag} {get_cpp_compiler()}"
    digest = hashlib.sha256(SOURCE.read_bytes() + facts.encode()).hexdigest()[:16]
    return cache_folder() / f"{NAME}_{digest}.so"


def build(path: Path) -> None:
    """Compile; the library appears whole or not at all."""
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    with tempfile.TemporaryDirectory(prefix="making_", dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [
            get_cpp_compiler(), "-O2", "-std=c++20", "-shared", "-fPIC", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{include}" for include in includes),
            str(SOURCE), "-o", str(made), f"-L{root / 'lib'}", "-ltorch_python", "-lc10",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(f"{command[0]}: {lines[0] if lines else f'exit status {done.returncode}'}")
        os.replace(made, path)
