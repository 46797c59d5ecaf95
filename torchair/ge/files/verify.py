"""Check that a graph is valid, between passes under `engine_config.verify`, and in tests.

Every check raises one `BadGraph` that names the op, the value found, and its prototype.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torchair.core.errors import BadGraph
from torchair.ge.attr import BY_PROTOTYPE, KNOWN, Attr, Raw
from torchair.ge.builder.torch_kernel_binding import shown
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, ConstantResult, Graph, Op, Tensor
from torchair.ge.prototype import AttrParam, Param, Prototype, catalogue
from torchair.ge.schema.formats import formats_of
from torchair.ge.schema.op_dtypes import taken, undeclared
from torchair.ge.toposort import first_misplaced, sort_ops


def verify(graph: Graph) -> None:
    """Raise `BadGraph` for the first fault in this graph or its sub-graphs."""
    for part in (graph, *graph.subgraphs.values()):
        _names(part)
        for op in part.ops:
            _outputs_belong(op)
        _edges(part)
        _order(part)
        for op in part.ops:
            _against_prototype(op, graph.subgraphs)
        _inputs_and_output(part)
        _runtime_facts(part)


EVERY_GRAPH = False
"""Check what every conversion has emitted. Set by tests."""


def verify_emitted(graph: Graph) -> None:
    """Raise `BadGraph` for the first op that an engine would reject.

    The fault is a type that its prototype does not declare, or an image without its format. Graphs of other
    producers may use newer prototypes, torchair's own may not.
    """
    for part in (graph, *graph.subgraphs.values()):
        for op in part.ops:
            for slot, dtype in undeclared(op):
                raise _wrong(
                    f"{_shown(op)} does not accept {dtype} as {slot!r}",
                    op,
                    near=" ".join(taken(op.type, slot)),
                )
            for name, formats in formats_of(op).items():
                if name not in op.attrs or op.attrs[name].value != formats:
                    raise _wrong(
                        f"{_shown(op)} must have {name} = {formats}",
                        op,
                        got=repr(op.attrs.get(name)),
                        next="build ops with torchair.ge",
                    )


def _wrong(what: str, op: Op | None = None, *, got: str = "", near: str = "", next: str = "") -> BadGraph:
    source = op.origin.source if op is not None and op.origin is not None else ""
    return BadGraph(what, at=source, got=got, near=near, next=next)


def _close(name: str, known: Iterable[str]) -> str:
    listed = list(known)
    return ", ".join(difflib.get_close_matches(name, listed, n=3)) or ", ".join(listed[:12]) or "none"


def _names(graph: Graph) -> None:
    seen: dict[str, Op] = {}
    for op in graph.ops:
        if not op.name.strip():
            raise _wrong(f"an op of type {op.type} in {graph.name} has a blank name", op)
        if op.name in seen:
            raise _wrong(
                f"{graph.name} has two ops called {op.name!r}",
                op,
                got=f"a {seen[op.name].type} and a {op.type}",
                next="use Graph.new_name, or choose an unused name",
            )
        if graph.by_name.get(op.name) is not op:
            raise _wrong(f"{graph.name}.by_name has no op {op.name!r}", op, next="add ops with Graph.add")
        seen[op.name] = op
    if len(graph.by_name) != len(seen):
        gone = ", ".join(sorted(graph.by_name.keys() - seen.keys()))
        raise _wrong(
            f"{graph.name}.by_name lists ops that are not in the graph: {gone}",
            next="remove ops with Graph.remove",
        )


def _edges(graph: Graph) -> None:
    """Check that every tensor that is read is an output of an op of this graph."""
    for op in graph.ops:
        for slot in op.slots:
            if slot.tensor is not None:
                _edge(graph, op, slot.name, slot.tensor)
        for before in op.after:
            if graph.by_name.get(before.name) is not before:
                raise _wrong(f"{_shown(op)} runs after {before.name!r}, which is not in {graph.name}", op)


def _edge(graph: Graph, op: Op, name: str, tensor: Tensor) -> None:
    if graph.by_name.get(tensor.op.name) is not tensor.op:
        raise _wrong(
            f"{_shown(op)}: input {name!r} reads {tensor.tensor}, whose op is not in {graph.name}",
            op,
            near=_close(tensor.op.name, graph.by_name),
            next="replace a tensor before removing its op",
        )
    made = tensor.op.outputs
    if tensor.index >= len(made) or made[tensor.index] is not tensor:
        raise _wrong(
            f"{_shown(op)}: input {name!r} reads {tensor.tensor}, which is not an output of {tensor.op.name}",
            op,
            near=", ".join(output.tensor for output in made),
        )


def _order(graph: Graph) -> None:
    found = first_misplaced(graph)
    if found is None:
        return
    op, before = found
    shadow = Graph(graph.name)
    shadow.ops = list(graph.ops)
    sort_ops(shadow)  # raises if there is a cycle
    how = "reads" if before in [tensor.op for tensor in op.inputs] else "runs after"
    raise _wrong(
        f"{_shown(op)} {how} {before.name}, which comes after it",
        op,
        got=f"positions {graph.ops.index(op)} and {graph.ops.index(before)}",
        next="insert new ops before their readers, or call torchair.ge.toposort.sort_ops",
    )


def _shown(op: Op) -> str:
    return f"{op.name} ({op.type})"


def _outputs_belong(op: Op) -> None:
    for number, tensor in enumerate(op.outputs):
        if tensor.op is not op or tensor.index != number:
            raise _wrong(f"output {number} of {_shown(op)} has the edge name {tensor.tensor}", op)


@dataclass(frozen=True)
class _Rules:
    """Hold a prototype prepared for look-ups."""

    proto: Prototype
    inputs: dict[str, Param]
    outputs: dict[str, Param]
    needed_inputs: tuple[str, ...]
    needed_attrs: tuple[str, ...]


@functools.cache
def _rules(op_type: str) -> _Rules:
    proto = catalogue()[op_type]
    needed = tuple(param.name for param in proto.inputs if param.kind == "required")
    return _Rules(
        proto,
        {param.name: param for param in proto.inputs},
        {param.name: param for param in proto.outputs},
        () if proto.name in INPUT_TYPES else needed,
        tuple(row.name for row in proto.attrs if row.required),
    )


def _against_prototype(op: Op, subgraphs: Collection[str]) -> None:
    for name in op.subgraphs:
        if name not in subgraphs:
            raise _wrong(
                f"{op.name} ({op.type}) names the sub-graph {name!r}", op, near=_close(name, subgraphs)
            )
    if op.type not in catalogue():
        return
    rules = _rules(op.type)
    if rules.proto is not catalogue()[op.type]:  # the prototype has been defined again
        _rules.cache_clear()
        rules = _rules(op.type)
    _inputs(op, rules)
    _attributes(op, rules)
    _outputs(op, rules)
    listed = rules.proto.graphs
    fixed = sum(param.kind == "required" for param in listed)
    if len(op.subgraphs) < fixed or (len(op.subgraphs) > fixed and fixed == len(listed)):
        raise _wrong(
            f"{op.name}: {op.type} has {fixed} sub-graphs", op, got=str(op.subgraphs), near=str(rules.proto)
        )


def _grouped(
    op: Op, side: str, names: Iterable[str], params: dict[str, Param], proto: Prototype
) -> dict[str, int]:
    """Return how many slots each parameter has. The slots of a list are numbered from 0."""
    counts: dict[str, int] = {}
    for name in names:
        param = params.get(name)
        if param is None or param.kind == "dynamic":
            stem = name.rstrip("0123456789")
            # The name of a list may itself end in a digit.
            while stem != name and not (stem in params and params[stem].kind == "dynamic"):
                stem = name[: len(stem) + 1]
            count = counts.get(stem, 0)
            if stem == name or name != f"{stem}{count}":
                what = (
                    f"has no {side} {name!r}"
                    if stem == name
                    else f"{side} {name!r} is where '{stem}{count}' belongs"
                )
                raise _wrong(f"{op.name}: {op.type} {what}", op, near=f"{_close(name, params)}; {proto}")
            counts[stem] = count + 1
        elif name in counts:
            raise _wrong(f"{op.name}: {op.type} has {side} {name!r} twice", op, near=str(proto))
        else:
            counts[name] = 1
    return counts


def _inputs(op: Op, rules: _Rules) -> None:
    slots, _, _ = shown(op)
    counts = _grouped(op, "input", [slot.name for slot in slots], rules.inputs, rules.proto)
    for name in rules.needed_inputs:
        if name not in counts:
            raise _wrong(f"{op.name}: {op.type} needs the input {name!r}", op, near=str(rules.proto))
    if op.type in INPUT_TYPES:
        return
    for slot in slots:
        if slot.tensor is None and (
            slot.name not in rules.inputs or rules.inputs[slot.name].kind != "optional"
        ):
            raise _wrong(
                f"{op.name}: {op.type} needs the input {slot.name!r}",
                op,
                got="nothing",
                near=str(rules.proto),
            )


def _outputs(op: Op, rules: _Rules) -> None:
    names = [tensor.desc.name for tensor in shown(op)[1]]
    # The output of a constant has no name.
    if op.type == "Const" and names == [""]:
        return
    counts = _grouped(op, "output", names, rules.outputs, rules.proto)
    missing = [
        name for name, param in rules.outputs.items() if param.kind != "dynamic" and name not in counts
    ]
    if missing:
        raise _wrong(
            f"{op.name}: the output {missing[0]!r} of {op.type} is missing",
            op,
            got=str(names),
            near=str(rules.proto),
        )
    declared = [name for name in rules.outputs if name in counts]
    if list(counts) != declared:
        raise _wrong(
            f"{op.name}: the outputs of {op.type} are in another order",
            op,
            got=str(names),
            near=str(rules.proto),
        )


def _attributes(op: Op, rules: _Rules) -> None:
    rows = rules.proto.attr_by_name
    for name, value in op.attrs.items():
        row = rows.get(name)
        kind = _kind(row) if row is not None else KNOWN.get(name)
        if row is None and kind is None and not name.startswith("_"):
            raise _wrong(
                f"{op.name}: {op.type} has no attribute {name!r}",
                op,
                got=repr(value),
                near=f"{_close(name, rows)}; {rules.proto}",
            )
        if kind is not None and type(value) not in (kind, Raw):
            raise _wrong(
                f"{op.name}: attribute {name!r} must be of type {kind.__name__}",
                op,
                got=repr(value),
                near=str(rules.proto),
            )
    for name in rules.needed_attrs:
        if name not in op.attrs:
            raise _wrong(f"{op.name}: {op.type} needs the attribute {name!r}", op, near=str(rules.proto))


def _kind(row: AttrParam) -> type[Attr] | None:
    return BY_PROTOTYPE.get(row.type)


def _inputs_and_output(graph: Graph) -> None:
    numbers = [op.attrs["index"].value if "index" in op.attrs else 0 for op in graph.inputs]
    if numbers != list(range(len(numbers))):
        raise _wrong(
            f"the graph inputs of {graph.name} are not numbered 0 to {len(numbers) - 1}",
            got=", ".join(f"{op.name}: {number}" for op, number in zip(graph.inputs, numbers, strict=True)),
            next="set their `index` attributes",
        )
    outputs = [op.name for op in graph.ops if op.type == OUTPUT_TYPE]
    if len(outputs) != 1:
        raise _wrong(f"{graph.name} must have one {OUTPUT_TYPE}", got=", ".join(outputs) or "none")


def _runtime_facts(graph: Graph) -> None:
    for number, result in enumerate(graph.results):
        if isinstance(result, ConstantResult):
            continue
        tensor = result.tensor
        if graph.by_name.get(tensor.op.name) is not tensor.op:
            raise _wrong(
                f"output {number} of {graph.name} is {tensor.tensor}, whose op is not in the graph",
                near=_close(tensor.op.name, graph.by_name),
                next="a pass that replaces a tensor must replace it in graph.results too",
            )
    if not graph.feeds:
        return
    fed, inputs = graph.feeds.keys(), {op.name for op in graph.inputs}
    if fed != inputs:
        raise _wrong(
            f"the graph inputs of {graph.name} do not match its feeds",
            got=f"inputs without a feed: {sorted(inputs - fed)}; feeds without an input: "
            f"{sorted(fed - inputs)}",
            next="change graph.feeds together with the Data ops",
        )
