"""Functions that the user declares constant (`torch._dynamo.assume_constant_result`). A trace calls them
without a guard. In another process they are called again, and must return the same result.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from torch._dynamo.variables import functions, nn_module

from torchair.core.errors import NotPossible, first_line
from torchair.core.fingerprint.python_objects import PLAIN, data


@dataclass(frozen=True)
class Assumed:
    """A call and its result."""

    module: str
    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    result: tuple[Any, ...]

    @staticmethod
    def of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Assumed:
        """Return the record of a call.

        Raises:
            NotPossible: if another process cannot repeat the call.
        """
        module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
        is_plain = all(isinstance(each, PLAIN) for each in (*args, *kwargs.values()))
        if not is_plain or not callable(_found(module, name)):
            raise NotPossible(
                f"{module}.{name} is assumed to be constant, but another process cannot repeat the call",
            )
        return Assumed(module, name, args, tuple(kwargs.items()), data(result))

    def why_other(self) -> str | None:
        """Return why this process has another result, or None if it is the same."""
        function = _found(self.module, self.name)
        if not callable(function):
            return f"{self.module}.{self.name} does not exist"
        try:
            now = data(function(*self.args, **dict(self.kwargs)))
        except Exception as error:
            now = ("an error", first_line(error))
        if now == self.result:
            return None
        return f"{self.module}.{self.name} was {self.result} and is {now}"


def _found(module: str, name: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


@contextmanager
def recorded_constants() -> Iterator[list[tuple[Any, ...]]]:
    """Yield the list of calls that a trace makes: function, arguments, result."""
    own, calls = functions.invoke_and_store_as_constant, list[tuple[Any, ...]]()

    def record(tx: Any, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            calls.append((function, given, named, result))
            return result

        return own(tx, call, name, args, kwargs)

    with (
        mock.patch.object(functions, "invoke_and_store_as_constant", record),
        mock.patch.object(nn_module, "invoke_and_store_as_constant", record),
    ):
        yield calls
