"""Environment variables: each is a row of `VARIABLES`, and all are read in this module. The rows are also the
page `docs/reference/environment.md`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchair.core.errors import BadOption

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Variable:
    """One environment variable. `read` is the time when it is read, or `NOT_READ`."""

    name: str
    default: str
    does: str
    read: str


_IMPORT, _COMPILE, _CALL = "at import", "at each compile", "at each call"
NOT_READ = "never"

VARIABLES = {
    row.name: row
    for row in (
        Variable(
            "TNG_LOG_LEVEL",
            "3",
            "Level of both loggers: 0 DEBUG, 1 INFO, 2 WARNING, 3 ERROR, 4 EVENT and ERROR. Any other value "
            "gives a Python warning and the level ERROR.",
            _IMPORT,
        ),
        Variable(
            "TORCH_COMPILE_DEBUG",
            "0",
            "1: write a folder of debug files for each run, and set the level of both loggers to DEBUG "
            "unless TNG_LOG_LEVEL is set.",
            f"{_IMPORT}, and {_COMPILE}",
        ),
        Variable(
            "TORCH_LOGS",
            "",
            "Read by torch. `torchair` sets torchair's logger to INFO and `+torchair` to DEBUG; "
            "`npugraph_ex` is the logger of capture mode. Other names concern torch only.",
            "by torch, when it is imported",
        ),
        Variable(
            "BREAK_GRAPH_OP_LIST",
            "",
            "Calls at which Dynamo breaks graphs: a comma-separated list of SLICE, SETITEM, NN.CONV3D and "
            "NN.LINEAR, in upper or lower case. It applies to every backend of the process. Other names "
            "raise an error.",
            f"{_IMPORT}, and by `get_npu_backend`",
        ),
        Variable(
            "TORCHAIR_STRICT",
            "0",
            "1: raise an error for everything that would be a `DegradedWarning`.",
            _COMPILE,
        ),
        Variable(
            "TORCHAIR_EXTENSION",
            "1",
            "0: do not build the C++ extension; replays check their inputs in Python.",
            "at the first recording",
        ),
        Variable(
            "TORCH_NPUGRAPH_GC",
            "0",
            "1: run Python's garbage collector before each recording, to free the memory of dead tensors.",
            "at each recording",
        ),
        Variable(
            "LOCAL_WORLD_SIZE",
            "",
            "Number of processes on this machine, set by torchrun. With several processes, static kernels "
            "are compiled only if it is a positive number that divides the world size.",
            "at the first static kernel of a graph",
        ),
        Variable(
            "ACL_STREAM_TIMEOUT",
            "-1",
            "Milliseconds that `npu_format_cast_via_cpu` waits for the current stream; -1 waits without "
            "limit. Must be a 32-bit integer.",
            _CALL,
        ),
        Variable(
            "TORCHAIR_PROGRAMS",
            "",
            "Folder in which programs compiled in the background are cached for later processes. By default "
            "it is a folder below XDG_CACHE_HOME.",
            _COMPILE,
        ),
        Variable("XDG_CACHE_HOME", "", "Folder of the user's caches, instead of `~/.cache`.", _COMPILE),
        Variable("CXX", "", "The C++ compiler. Cached programs of other compilers are not used.", _COMPILE),
        Variable(
            "TORCHAIR_CACHE_HOME",
            "",
            "Folder in which `cache_compile` caches compilations, instead of `.torchair_cache` in the "
            "working directory.",
            "at the first call of a cached function",
        ),
        Variable(
            "TORCHAIR_SIM_NPU",
            "0",
            "1: simulate an `npu` device on any machine; `import torch_npu` then works.",
            f"{_IMPORT}; if torchair is installed, at import of torch",
        ),
        Variable(
            "TORCHAIR_SIM_DEVICES",
            "8",
            "Number of simulated devices, if TORCHAIR_SIM_NPU or `import torch_npu` installs them.",
            "when the devices are installed",
        ),
        Variable(
            "TORCHAIR_SIM_BACKING",
            "cpu",
            "Device that runs the work of simulated devices: `cpu` or `cuda`.",
            "when the devices are installed",
        ),
        Variable(
            "TORCHAIR_SIM_MEMORY",
            str(64 << 30),
            "Bytes of memory of each simulated device.",
            "when the devices are installed",
        ),
        Variable(
            "PYTHONPATH",
            "",
            "Read by Python. `python -m torchair sim` prepends a folder, so that processes that the script "
            "starts find `torch_npu`.",
            "by that command",
        ),
        Variable(
            "PYTHONHOME",
            "",
            "Read by Python. Worker processes that compile programs find Python's library there.",
            "at the first background build",
        ),
        Variable(
            "ASCEND_DEVICE_ID",
            "0",
            "Ignored: graphs run on the device of their tensors.",
            NOT_READ,
        ),
    )
}


def text_of(name: str) -> str:
    """Return the value of a variable, or its default if it is unset or empty."""
    row = VARIABLES[name]
    assert row.read != NOT_READ, f"{name} is read: set `read` in its row"
    return os.environ.get(name) or row.default


def is_set(name: str) -> bool:
    """Return whether the variable is set and not empty."""
    assert name in VARIABLES, f"{name} has no row in VARIABLES"
    return bool(os.environ.get(name))


def is_on(name: str) -> bool:
    """Return whether a flag is on. If it is unset or empty, its default counts.

    Raises:
        BadOption: if the value is neither a yes nor a no.
    """
    value = text_of(name).lower()
    if value not in (*_YES, *_NO):
        raise BadOption(f"{name} must be 0 or 1", got=repr(value), next=f"unset {name}, or set it to 0 or 1")
    return value in _YES


def not_read() -> list[str]:
    """Return the names of variables that are set but that torchair ignores."""
    return [name for name, row in VARIABLES.items() if row.read == NOT_READ and is_set(name)]


@contextlib.contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process in this context. Must not be used concurrently."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
