"""C++ extensions of torchair: built once per source, torch and compiler, cached on disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import torch

from torchair.core.processes.scratch_dir import Scratch, check_running
from torchair.core.storage.cache_dir import cache_folder
from torchair.core.torch_private.compilers.inductor import get_cpp_compiler

BUILDER = Path(__file__).with_name("cpp_extension_build.py")
BUILD_SECONDS = 600

NO_PLUGINS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Variables of the build process. Otherwise torch would load the plug-in that waits for the extension."""


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock. After the time limit of a build, or if files cannot be locked, continue without
    it.
    """
    with path.open("w") as lock:
        end = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                break
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # forked children may have the file open


@dataclass(frozen=True)
class Extension:
    """One extension module."""

    name: str
    source: Path
    headers: Sequence[Path] = ()
    """Headers next to the source that it includes."""

    def library(self) -> Path:
        """Return the path of the cached library for these sources, this torch and this Python."""
        facts = f"{torch.__version__} {sys.implementation.cache_tag} {get_cpp_compiler()}"
        digest = hashlib.sha256(facts.encode())
        for path in (BUILDER, self.source, *self.headers):
            digest.update(path.read_bytes())
        return cache_folder() / f"{self.name}_{digest.hexdigest()[:16]}.so"

    def build(self, path: Path) -> None:
        """Compile the library. It is written atomically, and only one of several processes compiles it."""
        with alone(path.with_suffix(".lock")):
            if not path.exists():
                self._compile(path)

    def _compile(self, path: Path) -> None:
        compiler = get_cpp_compiler()
        scratch = Scratch(path.parent)
        with scratch as folder, (folder / "compiler.log").open("w+b") as log:
            # setuptools reads project files in its working directory; this folder has none
            command = [sys.executable, str(BUILDER), str(self.source), self.name, str(folder)]
            building = scratch.start(
                command, os.environ | {"CC": compiler, "CXX": compiler, **NO_PLUGINS}, log
            )
            try:
                status = building.process.wait(BUILD_SECONDS)
            finally:
                building.end()
            check_running()
            if status:
                log.seek(0)
                lines = log.read().decode(errors="replace").splitlines() or [f"exit status {status}"]
                raise RuntimeError(f"{compiler}: {next((s for s in lines if ' error: ' in s), lines[-1])}")
            os.replace(folder / f"{self.name}.so", path)

    def remove_damaged(self, path: Path) -> None:
        """Remove the library if it still cannot be loaded: another process may have rebuilt it meanwhile."""
        with alone(path.with_suffix(".lock")):
            try:
                self.load(path)
            except ImportError:
                path.unlink(missing_ok=True)

    def load(self, path: Path) -> ModuleType:
        """Load the library and return its module."""
        loader = ExtensionFileLoader(self.name, str(path))
        spec = importlib.util.spec_from_loader(self.name, loader)
        assert spec is not None, "spec_from_loader returns a spec for a loader"
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module
