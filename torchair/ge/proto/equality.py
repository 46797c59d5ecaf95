"""Compare two graphs; the result is the first difference as text, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchair.ge.attr import Attr, Bool, Int, Str
from torchair.ge.graph import INPUT_TYPES, AliasResult, ConstantResult, Desc, Graph, Op, Result
from torchair.ge.proto import schema
from torchair.ge.schema.descriptor import input_desc, output_desc
from torchair.ge.schema.runtime_attrs import as_written

_PLAIN = (Str, Int, Bool)


def same_graph(a: Graph, b: Graph, *, descriptors: bool = True) -> str | None:
    """Return the first difference between two graphs, or None.

    Origins are not compared, nor the position of constants among the other ops, which has no effect. Feeds
    and results are compared if both graphs have them. Descriptors are compared as they would be written.
    `descriptors=False` compares only those of graph inputs: inference would fill in the others anyway.
    """
    found = _same_body(a, b, descriptors)
    if found is not None:
        return found
    if list(a.subgraphs) != list(b.subgraphs):
        return f"sub-graphs: {list(a.subgraphs)} != {list(b.subgraphs)}"
    for name, part in a.subgraphs.items():
        found = _same_body(part, b.subgraphs[name], descriptors)
        if found is not None:
            return f"in sub-graph {name}: {found}"
    return None


def same_attr(a: Attr, b: Attr) -> bool:
    """Return whether attributes are written the same: NaN equals NaN, and floats count as 32 bits."""
    if type(a) is not type(b):
        return False
    if a is b or (isinstance(a, _PLAIN) and a.value == b.value):
        return True
    return _wire(a) == _wire(b)


def _wire(attr: Attr) -> bytes:
    written = schema.attr_def()
    attr.merge_to(written)
    return bytes(written.SerializeToString(deterministic=True))


def _same_body(a: Graph, b: Graph, descriptors: bool) -> str | None:
    facts: list[tuple[str, Any, Any]] = [
        ("name", a.name, b.name),
        ("ops", _names(a, constants=False), _names(b, constants=False)),
        ("constants", sorted(_names(a, constants=True)), sorted(_names(b, constants=True))),
    ]
    if (a.feeds or a.results) and (b.feeds or b.results):
        facts.append(("feeds", a.feeds, b.feeds))
        facts.append(
            ("results", [_fact(result) for result in a.results], [_fact(result) for result in b.results])
        )
    if descriptors:
        facts += [("rest", a.rest, b.rest), ("rest of the model", a.model_rest, b.model_rest)]
    found = _first(facts) or _attributes(a.attrs, b.attrs)
    if found is not None:
        return f"{a.name}: {found}"
    for op in a.ops:
        found = _same_op(op, b.by_name[op.name], descriptors)
        if found is not None:
            return f"{op.name} ({op.type}): {found}"
    return None


def _names(graph: Graph, *, constants: bool) -> list[str]:
    return [op.name for op in graph.ops if (op.type == "Const") == constants]


def _same_op(a: Op, b: Op, descriptors: bool) -> str | None:
    facts: list[tuple[str, Any, Any]] = [
        ("type", a.type, b.type),
        ("inputs", _edges(a), _edges(b)),
        ("outputs", [t.desc.name for t in a.outputs], [t.desc.name for t in b.outputs]),
        ("runs after", [op.name for op in a.after], [op.name for op in b.after]),
        ("sub-graphs", a.subgraphs, b.subgraphs),
    ]
    found = _first(facts) or _attributes(a.attrs, b.attrs)
    if found is not None or not (descriptors or a.type in INPUT_TYPES):
        return found
    if not descriptors:
        return _first([("input", _spec(output_desc(a.outputs[0])), _spec(output_desc(b.outputs[0])))])
    pairs = [
        *(
            (f"input {x.name!r}", input_desc(a, x), input_desc(b, y))
            for x, y in zip(a.slots, b.slots, strict=True)
        ),
        *(
            (f"output {i}", *map(output_desc, pair))
            for i, pair in enumerate(zip(a.outputs, b.outputs, strict=True))
        ),
    ]
    for what, x, y in pairs:
        found = _first([(what, _spec(x) + (x.rest,), _spec(y) + (y.rest,))]) or _attributes(x.attrs, y.attrs)
        if found is not None:
            return found if found.startswith(what) else f"{what}: {found}"
    return _first([("rest", a.rest, b.rest)])


def _spec(desc: Desc) -> tuple[Any, ...]:
    return (desc.dtype, desc.shape, desc.layout, desc.device)


def _edges(op: Op) -> list[tuple[str, str]]:
    return [(slot.name, "" if slot.tensor is None else slot.tensor.tensor) for slot in op.slots]


def _fact(result: Result) -> tuple[Any, ...]:
    written = as_written(result)
    kind = type(written).__name__
    if isinstance(written, ConstantResult):
        return kind, written.value
    return kind, written.tensor.tensor, written.base if isinstance(written, AliasResult) else None


def _first(facts: Sequence[tuple[str, Any, Any]]) -> str | None:
    for what, x, y in facts:
        if x != y:
            return f"{what}: {_shorten(x, y)}"
    return None


def _shorten(x: Any, y: Any) -> str:
    """Reduce two long lists to the first items that differ."""
    if isinstance(x, list) and isinstance(y, list):
        for number, (p, q) in enumerate(zip(x, y, strict=False)):
            if p != q:
                return f"[{number}] {p!r} != {q!r}"
        return f"{len(x)} != {len(y)} of them"
    return f"{x!r} != {y!r}"


def _attributes(a: Mapping[str, Attr], b: Mapping[str, Attr]) -> str | None:
    if a.keys() != b.keys():
        only_a, only_b = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        return f"attributes: {only_a} only in one, {only_b} only in the other"
    for name, value in a.items():
        if not (value == b[name] or same_attr(value, b[name])):
            return f"attribute {name!r}: {value!r} != {b[name]!r}"
    return None
