"""What offline tuning tries out (`aoe_config`): ways to compile a graph. By default they are the device's; a
file (`aoe_config_file`) may name others:

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
    """One way to compile a graph: a code generator, and options of Inductor for it."""

    codegen: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return " ".join([self.codegen, *(f"{name}={value}" for name, value in self.options.items())])

    def data(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {"codegen": self.codegen, "options": dict(self.options)}


@dataclass(frozen=True)
class AutotuneConfig:
    """What is tried, how often, and where results are kept."""

    folder: Path
    ways: tuple[Candidate, ...] = ()
    """None: those of the device."""
    repeats: int = 20
    """Timed runs of each; the quickest counts."""
    again: bool = False
    """Try even what has a result."""


NAMES = {"candidates": "ways", "repeats": "repeats", "again": "again"}
"""In a file, and here."""


class InvalidAutotuneConfig(ValueError):
    """What a file has in a place where something else belongs."""


def read_plan(folder: str, file: str | None) -> AutotuneConfig:
    """The plan for this working directory, as the file says if there is one."""
    plan = AutotuneConfig(Path(folder).absolute())
    if file is None:
        return plan
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        given = {NAMES[name]: _READ[name](value) for name, value in _object(content, NAMES).items()}
    except (OSError, ValueError) as error:
        what = f"aoe_config.aoe_config_file {file} is no tuning plan"
        raise BadOption(what, got=str(error), near=FORM, next="docs/guide/performance.md") from error
    return replace(plan, **given)


def _object(value: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidAutotuneConfig(f"{_short(value)}, and an object is wanted")
    for name in value:
        if name not in names:
            raise InvalidAutotuneConfig(f"{name!r}, which is none of {', '.join(names)}")
    return value


def _candidates(value: Any) -> tuple[Candidate, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidAutotuneConfig(f"candidates: {_short(value)}, and a list of at least one is wanted")
    return tuple(map(_way, value))


def _way(value: Any) -> Candidate:
    found = _object(value, {"codegen": None, "options": None})
    kind, options = found.get("codegen"), found.get("options", {})
    if kind not in GENERATORS:
        raise InvalidAutotuneConfig(f"codegen: {_short(kind)}, which is none of {', '.join(GENERATORS)}")
    if not isinstance(options, dict) or (options and kind == "eager"):
        raise InvalidAutotuneConfig(
            f"options: {_short(options)}, and an object of Inductor's options is wanted"
        )
    known = inductor_config.get_config_copy()
    for name, option in options.items():
        if name not in known:
            raise InvalidAutotuneConfig(f"{name!r}, which is no option of this Inductor")
        if name in RESERVED:
            raise InvalidAutotuneConfig(f"{name!r}, which is not for tuning: every build sets it")
        if not _fits(option, known[name]):
            raise InvalidAutotuneConfig(
                f"{name}: {_short(option)}, and it is {_short(known[name])} by default"
            )
    return Candidate(kind, options)


def _fits(value: Any, default: Any) -> bool:
    """May an option have this value, as far as its default tells?"""
    return default is None or type(value) is type(default) or (type(value), type(default)) == (int, float)


def _repeats(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidAutotuneConfig(f"repeats: {_short(value)}, and a number from 1 on is wanted")
    return value


def _again(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidAutotuneConfig(f"again: {_short(value)}, and true or false is wanted")
    return value


def _short(value: Any) -> str:
    return repr(value)[:60]


_READ: dict[str, Callable[[Any], Any]] = {"candidates": _candidates, "repeats": _repeats, "again": _again}
