"""The candidates of offline autotuning (`aoe_config`): ways to compile a graph. The device has default
candidates; a file (`aoe_config_file`) can replace them:

    {"candidates": [{"codegen": "inductor", "options": {"max_autotune": true}}], "repeats": 9, "again": true}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchair.codegen import RESERVED
from torchair.core.errors import BadOption
from torchair.core.torch_private.compilers.inductor import inductor_config

GENERATORS = ("inductor", "native", "eager")
FORM = '{"candidates": [{"codegen": "inductor", "options": {"max_autotune": true}}], "repeats": 9}'


@dataclass(frozen=True)
class Candidate:
    """One way to compile a graph: a code generator, and its Inductor options."""

    codegen: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return " ".join([self.codegen, *(f"{name}={value}" for name, value in self.options.items())])

    def data(self) -> dict[str, Any]:
        """Return the candidate as it is written in a file."""
        return {"codegen": self.codegen, "options": dict(self.options)}


@dataclass(frozen=True)
class AutotuneConfig:
    """The candidates of autotuning, the number of runs, and the directory of results."""

    folder: Path
    ways: tuple[Candidate, ...] = ()
    """The candidates; if empty, those of the device."""
    repeats: int = 20
    """Timed runs of each candidate; the fastest one counts."""
    again: bool = False
    """Whether to autotune graphs again that have a result."""


NAMES = {"candidates": "ways", "repeats": "repeats", "again": "again"}
"""The names in a file, and the fields of `AutotuneConfig`."""


class InvalidAutotuneConfig(ValueError):
    """A file has an invalid value."""


def read_plan(folder: str, file: str | None) -> AutotuneConfig:
    """Return the configuration for this working directory, with the values of `file` if there is one."""
    plan = AutotuneConfig(Path(folder).absolute())
    if file is None:
        return plan
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        given = {NAMES[name]: _READ[name](value) for name, value in _object(content, NAMES).items()}
    except (OSError, ValueError) as error:
        what = f"aoe_config.aoe_config_file {file} is not a valid tuning plan"
        raise BadOption(
            what, got=str(error), near=FORM, next="see docs/how-to/tune-performance.md"
        ) from error
    return replace(plan, **given)


def _object(value: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidAutotuneConfig(f"expected an object, got {_short(value)}")
    for name in value:
        if name not in names:
            raise InvalidAutotuneConfig(f"unknown name {name!r}, choose from {', '.join(names)}")
    return value


def _candidates(value: Any) -> tuple[Candidate, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidAutotuneConfig(f"candidates: expected a nonempty list, got {_short(value)}")
    return tuple(map(_candidate, value))


def _candidate(value: Any) -> Candidate:
    found = _object(value, {"codegen": None, "options": None})
    kind, options = found.get("codegen"), found.get("options", {})
    if kind not in GENERATORS:
        raise InvalidAutotuneConfig(f"codegen: expected one of {', '.join(GENERATORS)}, got {_short(kind)}")
    if not isinstance(options, dict) or (options and kind == "eager"):
        raise InvalidAutotuneConfig(
            f"options: expected an object of Inductor options, which 'eager' does not have, got "
            f"{_short(options)}"
        )
    known = inductor_config.get_config_copy()
    for name, option in options.items():
        if name not in known:
            raise InvalidAutotuneConfig(f"{name!r} is not an option of this version of Inductor")
        if name in RESERVED:
            raise InvalidAutotuneConfig(f"{name!r} cannot be tuned: torchair sets it in each compile")
        if not _accepts(option, known[name]):
            raise InvalidAutotuneConfig(
                f"{name}: expected a value like the default {_short(known[name])}, got {_short(option)}"
            )
    return Candidate(kind, options)


def _accepts(value: Any, default: Any) -> bool:
    """Whether an option may have this value, judged by the type of its default."""
    return default is None or type(value) is type(default) or (type(value), type(default)) == (int, float)


def _repeats(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidAutotuneConfig(f"repeats: expected a positive int, got {_short(value)}")
    return value


def _again(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidAutotuneConfig(f"again: expected true or false, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    return repr(value)[:60]


_READ: dict[str, Callable[[Any], Any]] = {"candidates": _candidates, "repeats": _repeats, "again": _again}
