"""For each kind of option: values it accepts, as a hypothesis strategy, and values it refuses with what."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import strategies as st

from torchair.configs import kinds
from torchair.configs.kinds import Kind
from torchair.configs.option import Option
from torchair.configs.pass_switches import SwitchText

HERE = os.path.dirname(os.path.abspath(__file__))
THIS_FILE = os.path.abspath(__file__)
REFUSED: dict[type[Kind], list[tuple[Any, type[Exception]]]] = {
    kinds.Kind: [],
    kinds.Raw: [],
    kinds.Choice: [("True", ValueError), (None, ValueError), (7, ValueError), ([], ValueError)],
    kinds.IntRange: [("1", ValueError), (1.5, ValueError), (2**63, ValueError), (-2, ValueError)],
    kinds.ExistingDir: [(None, FileNotFoundError), ("/no/such", FileNotFoundError), (0, FileNotFoundError)],
    kinds.ExistingFile: [("/no/such", FileNotFoundError), (HERE, FileNotFoundError), (0, FileNotFoundError)],
    kinds.ExistingJson: [("", ValueError), ("/no/x.json", FileNotFoundError), (THIS_FILE, FileNotFoundError)],
    kinds.Regex: [(None, TypeError), (3, TypeError), ("1--6;", ValueError)],
    kinds.Instance: [(3, TypeError), ([1], TypeError)],
    kinds.Function: [(3, TypeError), ("f", TypeError)],
    kinds.IntList: [(3, TypeError), (["1"], TypeError), ("12", TypeError)],
    kinds.PathText: [(None, TypeError), (3, TypeError)],
    kinds.NewDir: [
        (3, TypeError),
        *((text, ValueError) for text in ("", "a/../b", "a\0b", THIS_FILE, f"{THIS_FILE}/below")),
    ],
    SwitchText: [(3, TypeError), ("A", ValueError), ("A:on;:off", ValueError), ("A:On", ValueError)],
}

_PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
_KEYS = st.text() | st.integers()
_ANY = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.tuples(inner, inner),
    max_leaves=5,
)


def accepted(row: Option, folder: str) -> st.SearchStrategy[Any]:
    """Values the option takes; `folder` is an existing directory with a file `dump.json`."""
    kind = row.kind
    if isinstance(kind, kinds.Choice):
        return st.sampled_from(kind.values)
    if isinstance(kind, kinds.IntRange):
        return st.integers(kind.low, kind.high) | (st.none() if kind.none else st.just(kind.high))
    if isinstance(kind, kinds.Regex):
        return st.from_regex(kind.pattern, fullmatch=True)
    if isinstance(kind, kinds.Instance):
        typed = st.text() if kind.type is str else st.dictionaries(_KEYS, _ANY)
        return st.none() | typed
    by_kind: dict[type[Kind], st.SearchStrategy[Any]] = {
        kinds.Kind: _ANY,
        kinds.Raw: _ANY,
        kinds.ExistingDir: st.sampled_from(["./", folder]),
        kinds.ExistingFile: st.sampled_from([None, THIS_FILE]),
        kinds.ExistingJson: st.sampled_from([None, os.path.join(folder, "dump.json")]),
        kinds.Function: st.sampled_from([None, os.path.join, len]),
        kinds.IntList: st.none() | st.lists(st.integers()) | st.lists(st.integers()).map(tuple),
        kinds.PathText: st.sampled_from(["./", "some/where", HERE]),
        kinds.NewDir: st.sampled_from([None, "some/where", folder]),
        SwitchText: st.sampled_from([None, "", "A:on", "A:on;B-1:off;"]),
    }
    return by_kind[type(kind)]
