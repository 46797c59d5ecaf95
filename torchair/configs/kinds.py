"""Define the kinds of option values: a class per kind, with its check and its text for the reference page.

`check` returns the value to store, or raises the exception type of the kind; `path` names the option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchair.core.errors import BadOption, BadOptionType, BadPath

INT64_MAX = 2**63 - 1


class Kind:
    """Accept any value and store it as it is. This is the base of the narrower kinds.

    If `keeps` is set, `.value` returns the object itself instead of its text.
    """

    keeps = False

    @property
    def allowed(self) -> list[Any] | None:
        """The complete list of accepted values, or None."""
        return None

    def text(self) -> str:
        """Describe the accepted values."""
        return "any value"

    def check(self, path: str, value: Any) -> Any:
        """Return the value to store, or raise an error that names `path`."""
        return value


class Raw(Kind):
    """Accept any value and return the object itself."""

    keeps = True


@dataclass(frozen=True, init=False)
class Choice(Kind):
    """Accept one of the listed values, compared with `==`; so 1 and 0 become True and False."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    @property
    def allowed(self) -> list[Any]:
        return list(self.values)

    def text(self) -> str:
        return ", ".join(f"`{value!r}`" for value in self.values)

    def check(self, path: str, value: Any) -> Any:
        for known in self.values:
            if _equal(value, known):
                return known
        raise BadOption(
            f"{path} does not accept {value!r}",
            got=_typed(value),
            near="allowed: " + ", ".join(map(repr, self.values)),
            next=f"assign one of these, or `del` {path} to go back to its default",
        )


@dataclass(frozen=True)
class IntRange(Kind):
    """Accept an int within [low, high]; a bool counts as an int. With `none`, also accept None."""

    low: int
    high: int = INT64_MAX
    none: bool = False

    def text(self) -> str:
        high = "2^63-1" if self.high == INT64_MAX else str(self.high)
        return ("`None` or " if self.none else "") + f"int, {self.low} to {high}"

    def check(self, path: str, value: Any) -> int | None:
        if value is None and self.none:
            return None
        if not isinstance(value, int):
            raise BadOption(f"{path} must be an int", got=_typed(value), near=f"allowed: {self.text()}")
        if not self.low <= value <= self.high:
            raise BadOption(f"{path} is out of range", got=str(value), near=f"allowed: {self.text()}")
        return int(value)


class ExistingDir(Kind):
    """Accept the path of an existing directory."""

    def text(self) -> str:
        return "path of an existing directory"

    def check(self, path: str, value: Any) -> str:
        if not isinstance(value, str | os.PathLike) or not os.path.isdir(value):
            raise BadPath(f"{path} must be an existing directory", got=_typed(value), next="create it first")
        return os.fsdecode(value)


class ExistingFile(Kind):
    """Accept None or the path of an existing file."""

    suffix = ""

    def text(self) -> str:
        return "`None` or path of an existing file"

    def check(self, path: str, value: Any) -> str | None:
        if value is None:
            return None
        is_path = isinstance(value, str | os.PathLike)
        if not is_path or not os.path.isfile(value) or not os.fsdecode(value).endswith(self.suffix):
            raise BadPath(f"{path} must be an existing {self.suffix or 'regular'} file", got=_typed(value))
        return os.fsdecode(value)


class ExistingJson(ExistingFile):
    """Accept None or the path of an existing .json file; an empty string raises BadOption."""

    suffix = ".json"

    def text(self) -> str:
        return "`None` or path of an existing `.json` file"

    def check(self, path: str, value: Any) -> str | None:
        if value == "":
            raise BadOption(f"{path} must not be empty", got="''", next="name a .json file or assign None")
        return super().check(path, value)


@dataclass(frozen=True)
class Regex(Kind):
    """Accept a string that matches the whole pattern; `words` describes the pattern."""

    pattern: str
    words: str

    def text(self) -> str:
        return self.words

    def check(self, path: str, value: Any) -> str:
        if not isinstance(value, str):
            raise BadOptionType(f"{path} must be a string", got=_typed(value), near=f"allowed: {self.words}")
        if re.fullmatch(self.pattern, value) is None:
            raise BadOption(f"{path} has the wrong form", got=repr(value), near=f"allowed: {self.words}")
        return value


@dataclass(frozen=True)
class Instance(Kind):
    """Accept None or an instance of one Python type."""

    type: type

    def text(self) -> str:
        return f"`None` or {self.type.__name__}"

    def check(self, path: str, value: Any) -> Any:
        if value is not None and not isinstance(value, self.type):
            raise BadOptionType(f"{path} must be a {self.type.__name__} or None", got=_typed(value))
        return value


class Function(Kind):
    """Accept None or a callable."""

    keeps = True

    def text(self) -> str:
        return "`None` or a callable"

    def check(self, path: str, value: Any) -> Any:
        if value is not None and not callable(value):
            raise BadOptionType(f"{path} must be callable or None", got=_typed(value))
        return value


@dataclass(frozen=True)
class IntList(Kind):
    """Accept None or a list or tuple of ints, stored as a list. With `none_is_empty`, None becomes []."""

    none_is_empty: bool = False

    def text(self) -> str:
        return "`None`, list or tuple of int"

    def check(self, path: str, value: Any) -> list[int] | None:
        if value is None:
            return [] if self.none_is_empty else None
        if not isinstance(value, list | tuple) or not _all_ints(value):
            raise BadOptionType(f"{path} must be a list or tuple of ints, or None", got=_typed(value))
        return [int(item) for item in value]


class PathText(Kind):
    """Accept any path and store the real path. The directory is created when it is needed."""

    def text(self) -> str:
        return "any path"

    def check(self, path: str, value: Any) -> str:
        if not isinstance(value, str | bytes | os.PathLike):
            raise BadOptionType(f"{path} must be a path", got=_typed(value))
        return os.path.realpath(os.fsdecode(value))


class NewDir(Kind):
    """Accept None or a directory that exists or can be created: no `..`, and no symbolic link on the way."""

    def text(self) -> str:
        return "`None` or path of a directory that exists or can be created"

    def check(self, path: str, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str | os.PathLike):
            raise BadOptionType(f"{path} must be a path or None", got=_typed(value))
        text = os.fsdecode(value)
        if why := _missing_dir_reason(text):
            raise BadOption(f"{path} cannot be a directory: {why}", got=repr(text), next="use another path")
        return text


def _missing_dir_reason(text: str) -> str:
    """Return why no directory exists or can be created at this path; empty if one can."""
    place = Path(text)
    if not text or "\0" in text or ".." in place.parts:
        return "the path is empty, or contains '..' or a NUL character"
    whole = place.absolute()
    if link := next((parent for parent in (whole, *whole.parents) if parent.is_symlink()), None):
        return f"{link} is a symbolic link"
    there = next(parent for parent in (whole, *whole.parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


BOOL = Choice(True, False)


def _typed(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _equal(value: Any, known: Any) -> bool:
    """Compare `value == known` for values whose comparison may raise or return an array."""
    try:
        return bool(value == known)
    except (TypeError, ValueError, RuntimeError):
        return False


def _all_ints(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int) for value in values)
