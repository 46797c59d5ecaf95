"""Environment variables: each is a row of `VARIABLES`, and all are read here. What a row says is also on
`docs/reference/environment.md`.
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
    """One variable. `read` says when; nothing here reads those of which it says so."""

    name: str
    default: str
    does: str
    read: str


_IMPORT, _COMPILE, _CALL = "at import", "with each compile", "with each call"
NOT_READ = "not read here"

VARIABLES = {
    row.name: row
    for row in (
        Variable(
            "TNG_LOG_LEVEL",
            "3",
            "Level of both loggers: 0 DEBUG, 1 INFO, 2 WARNING, 3 ERROR, 4 EVENT and ERROR. Anything else is "
            "a Python warning, and ERROR.",
            _IMPORT,
        ),
        Variable(
            "TORCH_COMPILE_DEBUG",
            "0",
            "1: a folder of debug files for each run; the level of both loggers is DEBUG, unless "
            "TNG_LOG_LEVEL says another.",
            f"{_IMPORT}, and {_COMPILE}",
        ),
        Variable(
            "TORCH_LOGS",
            "",
            "torch's own: `torchair` shows INFO of our logger, `+torchair` DEBUG; `npugraph_ex` is capture "
            "mode's. Names of others are torch's business.",
            "by torch, when it is imported",
        ),
        Variable(
            "BREAK_GRAPH_OP_LIST",
            "",
            "Where Dynamo breaks graphs: a comma-separated list of SLICE, SETITEM, NN.CONV3D and NN.LINEAR, "
            "in any case. It holds for every backend of the process; another name is an error.",
            f"{_IMPORT}, and by `get_npu_backend`",
        ),
        Variable(
            "TORCHAIR_STRICT",
            "0",
            "1: whatever would be a `DegradedWarning` is an error, in every graph.",
            _COMPILE,
        ),
        Variable(
            "TORCHAIR_EXTENSION",
            "1",
            "0: no extension is built, and replays ask about their inputs in Python.",
            "with the first recording",
        ),
        Variable(
            "TORCH_NPUGRAPH_GC",
            "0",
            "1: Python's garbage is collected before each recording, so that memory it holds is free.",
            "with each recording",
        ),
        Variable(
            "LOCAL_WORLD_SIZE",
            "",
            "Processes on this machine, as torchrun sets it. With several processes, static kernels are "
            "compiled only where it is a positive number that divides the world size.",
            "with the first static kernel of a graph",
        ),
        Variable(
            "ACL_STREAM_TIMEOUT",
            "-1",
            "Milliseconds that `npu_format_cast_via_cpu` waits for the current stream; -1: for ever. It must "
            "be a 32-bit integer.",
            _CALL,
        ),
        Variable(
            "TORCHAIR_PROGRAMS",
            "",
            "Where programs that were built in the background are kept for later processes, instead of a "
            "folder below XDG_CACHE_HOME.",
            _COMPILE,
        ),
        Variable("XDG_CACHE_HOME", "", "Where caches of the user lie, instead of `~/.cache`.", _COMPILE),
        Variable("CXX", "", "The C++ compiler; programs of another one are not taken from disk.", _COMPILE),
        Variable(
            "TORCHAIR_CACHE_HOME",
            "",
            "Where `cache_compile` keeps what it compiled, instead of `.torchair_cache` in the working "
            "directory.",
            "with the first call of what is cached",
        ),
        Variable(
            "TORCHAIR_SIM_NPU",
            "0",
            "1: there is an `npu` device on any machine, simulated; `import torch_npu` works.",
            f"{_IMPORT}; where torchair is installed, when torch is imported",
        ),
        Variable(
            "TORCHAIR_SIM_DEVICES",
            "8",
            "How many simulated devices there seem to be, where TORCHAIR_SIM_NPU or `import torch_npu` "
            "brings them.",
            "when they are installed",
        ),
        Variable(
            "TORCHAIR_SIM_BACKING",
            "cpu",
            "Who does the work of simulated devices: `cpu` or `cuda`.",
            "when they are installed",
        ),
        Variable(
            "TORCHAIR_SIM_MEMORY",
            str(64 << 30),
            "How many bytes of memory each simulated device has.",
            "when they are installed",
        ),
        Variable(
            "PYTHONPATH",
            "",
            "Python's own. `python -m torchair sim` puts a folder before the others, where processes that "
            "the script starts find `torch_npu`.",
            "by that command",
        ),
        Variable(
            "PYTHONHOME",
            "",
            "Python's own. Where it is set, processes that build programs find the library of Python there.",
            "with the first background build",
        ),
        Variable(
            "ASCEND_DEVICE_ID",
            "0",
            "The device of a process without `torch_npu`. Here graphs run on the device of their tensors.",
            NOT_READ,
        ),
    )
}


def text_of(name: str) -> str:
    """The value of a variable, its default where it is not set or empty."""
    row = VARIABLES[name]
    assert row.read != NOT_READ, f"{name} is read after all: say when"
    return os.environ.get(name) or row.default


def is_set(name: str) -> bool:
    """Does the environment say anything about it?"""
    assert name in VARIABLES, f"{name} has no row"
    return bool(os.environ.get(name))


def is_on(name: str) -> bool:
    """Is a switch on? Unset or empty it is as by default."""
    value = text_of(name).lower()
    if value not in (*_YES, *_NO):
        raise BadOption(f"{name} is neither on nor off", got=repr(value), next="set it to 1 or 0")
    return value in _YES


def not_read() -> list[str]:
    """Variables that are set, and that nothing here reads."""
    return [name for name, row in VARIABLES.items() if row.read == NOT_READ and is_set(name)]


@contextlib.contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, others read these values. The environment is the process's: one at a time."""
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
