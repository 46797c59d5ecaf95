"""What code depends on beside what it was made of: the package, torch, the machine."""

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
    """The digest of this package's own files: converters, kernels, passes and all that compiles. What runs in
    this process are not the files that were changed since it began: it then has a digest of its own.
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
    """The build of torch."""
    return f"{torch.__version__} {torch.version.git_version}"


def tensor_facts() -> str:
    """What the methods of tensors do: anybody may put in others, and a graph of Dynamo's has their names."""
    return class_digest(torch.Tensor)


@cache
def processor() -> str:
    """What native code may use: compilers are asked for all that this processor can do."""
    known = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return known
    models = dict.fromkeys(line for line in lines if line.startswith(_PROCESSOR_LINES))
    return f"{known} {hashlib.sha256(' '.join(models).encode()).hexdigest()}"


def device_facts(device: torch.device) -> str:
    """What code for a device is made for."""
    if device.type != "cuda":
        return device.type
    row = torch.cuda.get_device_properties(device)
    return f"cuda {row.name} {row.major}.{row.minor} {torch.version.cuda}"
