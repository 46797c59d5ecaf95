"""The errors that users see. Each is also a built-in exception, so `except ValueError` keeps working.

An error has up to five parts: what failed, where in the user's code, what was there, what would work, and
what to do next.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound="AirError")


def is_of_user(error: BaseException) -> bool:
    """Return whether user code that torchair called raised the error, or whether the user asked for the
    error.
    """
    return isinstance(error, DegradedWarning) or (isinstance(error, AirError) and error.by_user)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: torch adds pages of advice."""
    text = str(getattr(error, "what", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class AirError(Exception):
    """Base of all errors that torchair raises on purpose.

    Its message has up to five parts:

    * `what`: what failed;
    * `at`: the line of the user's code;
    * `got`: the value that was there;
    * `near`: values that would work;
    * `next`: what to do.
    """

    by_user = False
    """Whether user code (a converter, a pass) raised it. Such an error is raised as it is, without a
    fallback.
    """

    def __init__(self, what: str, *, at: str = "", got: str = "", near: str = "", next: str = "") -> None:
        self.what = what
        self.details = {"at": at, "got": got, "near": near, "next": next}
        lines = [what]
        lines += [f"  {key:<6} {_indent(text)}" for key, text in self.details.items() if text]
        super().__init__("\n".join(lines))

    def of_user(self: E) -> E:
        """Mark the error as one of user code, and return it."""
        self.by_user = True
        return self

    def __str__(self) -> str:
        """Return the text. The __str__ of KeyError and similar bases would quote it."""
        return str(self.args[0])


def _indent(text: str) -> str:
    return text.strip().replace("\n", "\n" + " " * 9)


class DegradedWarning(UserWarning):
    """torchair falls back: results are correct, but need a copy, run slower, or an option has no effect."""


class Degraded(AirError, RuntimeError):
    """In strict mode, raised in place of a `DegradedWarning`."""

    by_user = True  # in strict mode the user wants errors, not fallbacks


class BadOption(AirError, ValueError):
    """An option has a value outside its allowed set, or its name does not exist."""


class UnknownOption(BadOption, AttributeError):
    """The option or group of options does not exist."""


class BadOptionType(AirError, TypeError):
    """The value of an option has the wrong Python type."""


class BadPath(AirError, FileNotFoundError):
    """An option names a file or directory that does not exist."""


class NotTrusted(AirError, PermissionError, ValueError):
    """A file or directory with code belongs to another user, or other users can write it."""


class BadEntry(AirError, ValueError):
    """A cache entry is damaged, or another version of torchair wrote it."""


class UnknownOp(AirError, RuntimeError):
    """The type of an IR op is not in the catalog of prototypes."""


class BadAttribute(AirError, ValueError):
    """An IR op has an attribute that its prototype does not have, or a value of the wrong kind."""


class BadInput(AirError, TypeError):
    """An IR op lacks an input, or gets a value that cannot become a tensor."""


class BadGraph(AirError, RuntimeError):
    """A graph is invalid: it has a dangling edge, a cycle or a repeated name, or a pass broke it."""


class BadPrototype(AirError, ValueError):
    """A declaration of IR ops, such as a header with REG_OP, cannot be parsed."""


class BadConverter(AirError, AssertionError):
    """The result of a converter does not match the result of its FX node."""


class BadKernel(AirError, TypeError):
    """The declared inputs or attributes of a kernel do not match its op."""


class UnsupportedOp(AirError, NotImplementedError):
    """An op needs a converter, a kernel or a decomposition, and has none."""


class BadPass(AirError, RuntimeError):
    """A pass (usually user-defined) raised an error or produced an invalid graph."""


class BadGears(AirError, AssertionError):
    """The gears of a tensor are empty, inconsistent, or do not match the call."""

    by_user = True


class BadCall(AirError, RuntimeError):
    """A compiled graph was called with arguments that it was not compiled for."""


class NotPossible(AirError, RuntimeError):
    """This device, mode or build does not support the request."""


class NotInThisMode(NotPossible, NotImplementedError):
    """The selected mode does not support this value of the option."""


class CannotBuild(AirError, RuntimeError):
    """A C++ part that has no replacement could not be built."""


class DeviceTaken(AirError, RuntimeError):
    """The simulated device cannot be installed: the process has another device of its kind."""


class PluginTaken(DeviceTaken, ImportError):
    """The simulated device cannot be installed: the vendor's `torch_npu` is installed."""


class BadGroup(AirError, ValueError):
    """A communication op names a group that does not exist, or ranks that are not in the group."""
