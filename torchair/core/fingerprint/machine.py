"""Digests of the environment that compiled code depends on: the package, torch, the machine."""

from __future__ import annotations

import hashlib
import platform
import time
import uuid
from functools import cache
from pathlib import Path

import torch

from torchair.core.fingerprint.python_objects import class_digest

_PACKAGE = Path(__file__).resolve().parents[2]
_PROCESSORS = Path("/proc/cpuinfo")
_PROCESSOR_LINES = ("model name", "flags", "Features", "CPU part", "isa")
_SOURCES = (".py", ".json", ".cpp", ".h")
_LOADED = time.time()


@cache
def sources() -> str:
    """Return the digest of this package's source files. If a file changed after this process started, the
    digest is unique to the process, because the process does not run the changed file.
    """
    digest = hashlib.sha256()
    files = sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _SOURCES)
    for path in files:
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    if any(path.stat().st_ctime > _LOADED for path in files):
        digest.update(uuid.uuid4().bytes)
    return digest.hexdigest()


def torch_facts() -> str:
    """Return the build of torch."""
    return f"{torch.__version__} {torch.version.git_version}"


def tensor_facts() -> str:
    """Return the digest of the methods of tensors. Packages may replace them, and Dynamo's graphs call them
    by name.
    """
    return class_digest(torch.Tensor)


@cache
def processor() -> str:
    """Return what native code may use: compilers generate code for all features of this processor."""
    known = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return known
    models = dict.fromkeys(line for line in lines if line.startswith(_PROCESSOR_LINES))
    return f"{known} {hashlib.sha256(' '.join(models).encode()).hexdigest()}"


def device_facts(device: torch.device) -> str:
    """Return what code for a device depends on."""
    if device.type != "cuda":
        return device.type
    row = torch.cuda.get_device_properties(device)
    return f"cuda {row.name} {row.major}.{row.minor} {torch.version.cuda}"
