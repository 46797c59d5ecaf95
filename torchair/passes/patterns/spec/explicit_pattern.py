"""Check patterns that users write with torch's pattern classes (`search_fn_pattern`)."""

from __future__ import annotations

from typing import Any

import torch

from torchair.core.errors import BadPass
from torchair.core.torch_private.compilers.pattern_matcher import is_keyword, is_nameless, values_in
from torchair.passes.patterns.spec.user_pattern import NUMBERS, UserPattern


def check_explicit(given: UserPattern, pattern: Any) -> None:
    """Check that the pattern names exactly the values that the replacement takes.

    A match would not determine any other value.
    """
    values = values_in(pattern)
    if any(is_nameless(each) for each in values):
        raise BadPass(
            f"search_fn_pattern of {given.name} has an Arg(), which is a value without a name",
            next=f"write KeywordArg({given.names[0]!r}), or Ignored() for what the replacement does not take",
        )
    named = {each.name for each in values if is_keyword(each)}
    examples = dict(zip(given.names, given.examples, strict=True))
    flat = {key for key, value in examples.items() if isinstance(value, (torch.Tensor, *NUMBERS))}
    missing = [key for key in given.names if not _is_named(key, named, key in flat)]
    unknown = [name for name in sorted(named) if not any(_is_of(name, key, key in flat) for key in examples)]
    if missing or unknown:
        raise BadPass(
            f"search_fn_pattern of {given.name} does not name what the replacement takes",
            got=f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}",
            near=f"it is called with {', '.join(given.names)}",
            next="add a KeywordArg with this name for each value; examples that are None or bools need none",
        )


def _is_named(key: str, named: set[str], is_flat: bool) -> bool:
    return any(_is_of(name, key, is_flat) for name in named)


def _is_of(name: str, key: str, is_flat: bool) -> bool:
    """Return whether the key names the value, or an element of it if it is a list: `xs_0`."""
    return name == key or (not is_flat and name.startswith(f"{key}_"))
