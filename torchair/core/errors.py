"""The errors users meet. Each is also a built-in exception, so `except ValueError` keeps working.

An error is a short letter: what failed, where in the user's code, what was there, what is near, what to do
next.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound="AirError")


def is_of_user(error: BaseException) -> bool:
    """Does the fault lie in code of the user's that we called, or was it the user's wish that it be one?"""
    return isinstance(error, DegradedWarning) or (isinstance(error, AirError) and error.by_user)


def first_line(error: BaseException) -> str:
    """What an error says in one line: torch adds pages of advice."""
    text = str(getattr(error, "what", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class AirError(Exception):
    """Base of all errors torchair raises on purpose.

    `what` is the first line; `at`, `got`, `near` and `next` are the lines below it and may be left out.
    """

    by_user = False
    """Raised by code of the user's (a converter, a pass): it is told as it is, and no other way is taken."""

    def __init__(self, what: str, *, at: str = "", got: str = "", near: str = "", next: str = "") -> None:
        self.what = what
        self.details = {"at": at, "got": got, "near": near, "next": next}
        lines = [what]
        lines += [f"  {key:<6} {_indent(text)}" for key, text in self.details.items() if text]
        super().__init__("\n".join(lines))

    def of_user(self: E) -> E:
        """The same error, of code that is the user's own."""
        self.by_user = True
        return self

    def __str__(self) -> str:
        """Also for KeyError-like bases, whose own __str__ would quote the text."""
        return str(self.args[0])


def _indent(text: str) -> str:
    return text.strip().replace("\n", "\n" + " " * 9)


class DegradedWarning(UserWarning):
    """A run is less than promised: right, but with a copy, a fall-back or a detour."""


class Degraded(AirError, RuntimeError):
    """In strict mode: a run would be less than promised."""

    by_user = True  # who asked for strictness wants to be told, not helped


class BadOption(AirError, ValueError):
    """An option has a value outside its allowed set, or its name does not exist."""


class UnknownOption(BadOption, AttributeError):
    """There is no option, and no group of options, of this name."""


class BadOptionType(AirError, TypeError):
    """An option was given a value of the wrong Python type."""


class BadPath(AirError, FileNotFoundError):
    """An option names a file or directory that does not exist."""


class NotTrusted(AirError, PermissionError, ValueError):
    """A file or directory with code in it belongs to somebody else, or others can write it."""


class BadEntry(AirError, ValueError):
    """What a cache keeps is damaged, or of another version."""


class UnknownOp(AirError, RuntimeError):
    """An IR op type that is not in the catalogue of prototypes."""


class BadAttribute(AirError, ValueError):
    """An IR op was built with an attribute it does not have, or with a value of the wrong kind."""


class BadInput(AirError, TypeError):
    """An IR op was built with a missing input, or with something that cannot be a tensor."""


class BadGraph(AirError, RuntimeError):
    """A graph is not valid: a dangling edge, a cycle, a name used twice, a pass that broke it."""


class BadPrototype(AirError, ValueError):
    """The text that declares IR ops, such as a header with REG_OP, cannot be read."""


class BadConverter(AirError, AssertionError):
    """A converter returned something that does not match what the FX node returns."""


class BadKernel(AirError, TypeError):
    """A kernel is declared with inputs or attributes its op does not have, or in a form that none has."""


class UnsupportedOp(AirError, NotImplementedError):
    """An op has no converter, no kernel or no decomposition, where one is really needed."""


class BadPass(AirError, RuntimeError):
    """A pass (usually a user's) raised, or left a graph that is not valid."""


class BadGears(AirError, AssertionError):
    """Gears of a tensor are none, or do not fit together or to a call."""

    by_user = True


class BadCall(AirError, RuntimeError):
    """A compiled graph was called with arguments it was not compiled for."""


class NotPossible(AirError, RuntimeError):
    """A request that this device, mode or build cannot fulfil."""


class NotInThisMode(NotPossible, NotImplementedError):
    """An option has a value that the chosen mode cannot serve."""


class CannotBuild(AirError, RuntimeError):
    """A part in C++ that nothing can replace could not be built."""


class DeviceTaken(AirError, RuntimeError):
    """The process has a device already where the simulated one was to be."""


class PluginTaken(DeviceTaken, ImportError):
    """The vendor's `torch_npu` is installed where the simulated one was to be."""


class BadGroup(AirError, ValueError):
    """An op that communicates names a group that does not exist, or ranks that it does not have."""
