"""Functions told apart in another process, by what they do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from torchair.core.errors import NotPossible
from torchair.core.fingerprint import python_objects
from torchair.core.fingerprint.python_objects import behaviour

FACTOR = 2.0


def closing(k: Any) -> Callable[..., Any]:
    return lambda x: x * k


def with_default(k: Any) -> Callable[..., Any]:
    def fn(x: Any, by: Any = k, *, also: Any = k) -> Any:
        return x * by * also

    return fn


def calling(k: Any) -> Callable[..., Any]:
    inner = closing(k)
    return lambda x: inner(x) + 1


def reads_a_global(x: Any) -> Any:
    return x * FACTOR


def calls_itself(x: Any) -> Any:
    return calls_itself(x - 1) if x else x


@pytest.mark.parametrize("make", [closing, with_default, calling])
def test_what_a_function_holds_is_part_of_it(make: Callable[[Any], Callable[..., Any]]) -> None:
    assert behaviour(make(2)) == behaviour(make(2))
    assert len({behaviour(make(k)) for k in (2, 2.0, 3, "3", (1, 2), True)}) == 6


def test_globals_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = behaviour(reads_a_global)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert behaviour(reads_a_global) != before


def test_functions_that_call_themselves_and_those_of_libraries() -> None:
    assert behaviour(calls_itself) == behaviour(calls_itself)
    assert behaviour(python_objects.data) == python_objects.identity(python_objects.data)


def test_unsupported_object_has_no_key() -> None:
    with pytest.raises(NotPossible, match="cannot be serialized"):
        behaviour(closing(object()))


def test_a_class_is_what_its_functions_are_now() -> None:
    class Shape:
        def area(self) -> int:
            return 1

        @property
        def name(self) -> str:
            return "one"

    first = python_objects.class_digest(Shape)
    own = Shape.area
    seen = {first}
    for area in (lambda self: 2, lambda self: 3):
        Shape.area = area  # type: ignore[method-assign]
        seen.add(python_objects.class_digest(Shape))
    Shape.area = own  # type: ignore[method-assign]
    assert python_objects.class_digest(Shape) == first
    Shape.name = property(lambda self: "two")  # type: ignore[method-assign,assignment]
    assert len(seen | {python_objects.class_digest(Shape)}) == 4


def test_a_class_is_not_kept() -> None:
    class Shape:
        def area(self) -> Any:
            return __class__  # type: ignore[name-defined]

    python_objects.class_digest(Shape)
    gone = weakref.ref(Shape)
    del Shape
    gc.collect()
    assert gone() is None
