"""Create one text for patterns that find the same, whether traced or given.

Calls come in the order in which they are reached, values are numbered in the order in which they appear, and
wildcard numbers are marked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torchair.core.torch_private.compilers.pattern_matcher import (
    is_any,
    is_call,
    is_keyword,
    is_pattern,
    outputs_of,
)
from torchair.core.torch_private.fake.fake_tensors import tree_map


def text_of(pattern: Any, wildcards: Collection[str]) -> str:
    """Return the pattern as text, a line per call; `wildcards` are the names of number values."""
    writer = _Writer(outputs_of(pattern), wildcards)
    results = [writer.write(each) for each in writer.outputs]
    return "\n".join([*writer.lines, f"return {', '.join(results)}"])


class _Writer:
    """Name values in the order in which they appear."""

    def __init__(self, outputs: list[Any], wildcards: Collection[str]) -> None:
        self.outputs = outputs
        self.lines: list[str] = []
        self._wildcards = wildcards
        self._names: dict[Any, str] = {}

    def write(self, part: Any) -> str:
        """Return the name of a value, or a constant unchanged."""
        if not is_pattern(part):
            return f"{type(part).__name__} {part!r}"
        key = ("value", part.name) if is_keyword(part) else part
        if key not in self._names:
            self._names[key] = self._new_name(part)
        return self._names[key]

    def _new_name(self, part: Any) -> str:
        if is_call(part):
            return self._call(part)
        if is_keyword(part):
            kind = "number" if part.name in self._wildcards else "value"
            return f"{kind}{len(self._names)}"
        return type(part).__name__ if is_any(part) else repr(part)

    def _call(self, part: Any) -> str:
        args, kwargs = tree_map(self.write, (list(part.args), dict(sorted(part.kwargs.items()))))
        readers = "" if part in self.outputs else f" read by {part.users}"
        name = f"call{len(self.lines)}"
        self.lines.append(f"{name} = {part.op} {[str(fn) for fn in part.fns]} {args} {kwargs}{readers}")
        return name
