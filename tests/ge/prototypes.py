"""Random prototypes, to test what reads and writes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from torchair.ge.header_parser import TYPE_SETS
from torchair.ge.header_words import EXPECTED
from torchair.ge.prototype import AttrParam, Param, Prototype

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "REG_OP")
TYPES = st.lists(st.sampled_from(TYPE_SETS["ALL"].split()), unique=True, max_size=14).map(tuple)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.sampled_from([0, 1, 9, 12, 28, 40])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "Int": INTS, "Float": FLOATS, "Bool": st.booleans(), "String": st.text(), "Type": NUMBERS,
    "Tensor": st.none(), "Bytes": st.none(), "NamedAttrs": st.none(),
}  # fmt: skip


def defaults(kind: str) -> st.SearchStrategy[Any]:
    if not kind.startswith("List"):
        return SCALARS[kind]
    item = kind.removeprefix("List")
    return st.just([]) if item in ("Tensor", "NamedAttrs") else st.lists(defaults(item), max_size=3)


@st.composite
def attributes(draw: st.DrawFn, name: str) -> AttrParam:
    kind = draw(st.sampled_from(sorted(EXPECTED)))
    if draw(st.booleans()):
        return AttrParam(name, kind, True)
    return AttrParam(name, kind, False, draw(st.one_of(st.none(), defaults(kind))))


@st.composite
def prototypes(draw: st.DrawFn) -> Prototype:
    names = st.lists(NAMES, unique=True, max_size=4)
    symbols = draw(st.dictionaries(NAMES, TYPES, max_size=2))

    def params(kinds: tuple[str, ...], used: list[str] | None = None) -> tuple[Param, ...]:
        made: list[Param] = []
        for name in draw(names):
            kind, symbol = draw(st.sampled_from(kinds)), draw(st.sampled_from(["", *symbols]))
            if used and draw(st.booleans()):
                made.append(Param(name, kind, promote=tuple(draw(st.permutations(used)))))
            else:
                made.append(Param(name, kind, symbols[symbol] if symbol else draw(TYPES), symbol))
        return tuple(made)

    inputs = params(("required", "optional", "dynamic"))
    used = sorted({param.symbol for param in inputs if param.symbol})
    return Prototype(
        draw(NAMES),
        inputs,
        params(("required", "dynamic"), used),
        tuple(draw(attributes(name)) for name in draw(names)),
        tuple(Param(name, draw(st.sampled_from(["required", "dynamic"]))) for name in draw(names)),
    )
