"""Normalize graphs of other producers to the form that the engine runs.

* One error lists all ops without a kernel.
* Calls of subgraphs are inlined.
* A `Case` op becomes a chain of `If` ops.
* Subgraphs accept all inputs that their callers pass, in order.
"""

from __future__ import annotations

import difflib
import itertools
from dataclasses import replace
from typing import Any

import torch

from torchair.convert.base.registry import candidates
from torchair.convert.special.auto_functionalized import WRAPPERS
from torchair.core import dtypes
from torchair.core.errors import BadGraph, UnsupportedOp
from torchair.core.torch_private.operators.alias_schema import original_of
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.engine.kernels.control import IF, WHILE
from torchair.engine.registry import has_kernel, kernel_names, why_without
from torchair.ge.attr import BY_PROTOTYPE, STORED_AS_BYTES, Attr, Int, Raw
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.builder.build import Const, add_op
from torchair.ge.builder.torch_kernel_binding import CALL, release, skipped
from torchair.ge.graph import (
    INPUT_TYPES,
    OUTPUT_TYPE,
    Desc,
    Graph,
    Op,
    Slot,
    Tensor,
    copy_graph,
)
from torchair.ge.schema.references import aliases
from torchair.ge.schema.runtime_attrs import take_runtime_attrs
from torchair.ge.schema.string_format import FORMAT, PRINT
from torchair.ge.toposort import sort_ops

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
CASES = ("Case", "StatelessCase")
# Ops that the engine runs without a kernel.
_SPECIAL = {
    *INPUT_TYPES, OUTPUT_TYPE, "Const", "Constant", "Shape", FORMAT, PRINT, *IF, *WHILE, *CALLS, *CASES,
}  # fmt: skip
PARENT = "_parent_node_index"
"""An attribute of a subgraph's input or output: the index of the caller's input or output."""
MANY_OPS = 1 << 18
"""The maximum number of ops after inlining. If each of n subgraphs calls the next twice, there are 2^n."""
SHOWN = 3


def normalize_foreign_graph(graph: Graph) -> None:
    """Normalize a graph in place; raise `UnsupportedOp` with all ops that have no kernel."""
    _refuse_unsupported(graph)
    for part in (graph, *graph.subgraphs.values()):
        for op in part.ops:
            _refuse_malformed(op)
            op.type = "Const" if op.type == "Constant" else op.type
    for part in _called_first(graph):
        for op in [op for op in part.ops if op.subgraphs]:
            _fit(graph, op)
            while op.type in CASES:
                op = _choose(graph, part, op)
    _refuse_many(graph)
    for part in _called_first(graph):
        for op in [op for op in part.ops if op.type in CALLS]:
            _inline(part, op, graph.subgraphs[op.subgraphs[0]])
    _write_references(graph)


def _write_references(graph: Graph) -> None:
    """Add an Assign for each input that a reference op mutates, because kernels return new values here."""
    written = {op.inputs[0] for op in graph.ops if op.type == "Assign" and op.inputs}
    output = graph.output
    for op in list(graph.ops):
        for number, slot in aliases(op):
            target = op.slots[slot].tensor
            if target is None or target.op.type not in INPUT_TYPES or target in written or output is None:
                continue
            with graph:
                add_op("Assign", {"ref": target, "value": op.outputs[number]}, {}, [("ref", None)])
            assign = graph.ops.pop()
            graph.ops.insert(graph.ops.index(output), assign)
            output.after.append(assign)


def _called_first(graph: Graph) -> list[Graph]:
    """Return all graphs in topological order, callees first; raise `BadGraph` for recursion."""
    done: dict[str, Graph] = {}

    def visit(part: Graph, path: tuple[str, ...]) -> None:
        for op, name in [(caller, name) for caller in part.ops for name in caller.subgraphs]:
            if name not in graph.subgraphs or name in path:
                what = "a subgraph recursively" if name in path else "a nonexistent subgraph"
                raise BadGraph(
                    f"{op.name} ({op.type}) in {part.name} calls {what}: {name!r}",
                    near=", ".join(graph.subgraphs),
                )
            if name not in done:
                visit(graph.subgraphs[name], (*path, name))
                done[name] = graph.subgraphs[name]

    visit(graph, ())
    return [*done.values(), graph]


# Unsupported ops


def _refuse_unsupported(graph: Graph) -> None:
    """Raise `UnsupportedOp` with the type and the names of each op without a kernel, and similar ops."""
    lacking: dict[str, list[str]] = {}
    torch_ops: dict[str, str] = {}
    for part in (graph, *graph.subgraphs.values()):
        torch_ops |= {op.type: name for op, name in release(part, _may_run).items()}
        without = skipped(part)
        for op in part.ops:
            known = op.type in _SPECIAL or has_kernel(op.type) or CALL in op.attrs or op in without
            if not known:
                lacking.setdefault(op.type, []).append(op.name)
    if not lacking:
        return
    cures = [
        f"declare {kind} with torchair.ge.register_prototype, if it is not declared, and add a kernel with"
        f" torchair.ge.register_kernel({kind!r}, fn)"
        for kind in list(lacking)[:1]
    ]
    cures += [
        f"import the module that defines {name} and its converter"
        for name in dict.fromkeys(torch_ops.values())
    ]
    raise UnsupportedOp(
        f"{graph.name} has {len(lacking)} op types without a kernel: {', '.join(lacking)}",
        got="\n".join(f"{kind}: {_format_names(names)}" for kind, names in lacking.items()),
        near="\n".join(f"{kind}: {_suggestions(kind, torch_ops.get(kind))}" for kind in lacking),
        next="; or ".join(reversed(cures)) + "; see docs/tutorials/write-a-custom-op.md",
    )


def _may_run(target: Any) -> bool:
    """Whether a file may run this torch op. A file can name any op, so only ops with a converter may run."""
    return target in WRAPPERS or (isinstance(target, OpOverload) and bool(candidates(original_of(target)[0])))


def _format_names(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _suggestions(kind: str, torch_op: str | None) -> str:
    """Return similar op types, or the reason why there is no kernel."""
    if torch_op is not None:
        return f"the exporter ran it with the torch op {torch_op}, which has no definition or converter here"
    similar = difflib.get_close_matches(kind, kernel_names(), n=SHOWN)
    return why_without(kind) or ", ".join(similar) or "no similar op"


def _refuse_malformed(op: Op) -> None:
    """Raise `BadGraph` for attributes of a wrong type, and constants with a wrong number of bytes."""
    declared = op.prototype.attr_by_name if op.prototype is not None else {}
    for name, attr in op.attrs.items():
        if name in declared and isinstance(attr, Raw) and declared[name].type in BY_PROTOTYPE:
            raise BadGraph(
                f"attribute {name!r} of op {op.name} must be of type {declared[name].type}",
                got=repr(attr),
                near=str(op.prototype),
            )
    if op.type in ("Const", "Constant"):
        value = op.attrs.get("value")
        if not isinstance(value, TensorAttr) or len(op.outputs) != 1:
            raise BadGraph(f"constant {op.name} has no value", got=repr(value)[:200])
        is_stored = value.dtype in STORED_AS_BYTES and value.dtype != dtypes.UNDEFINED
        if not is_stored and (value.dtype, value.shape) != (_of(value.value), tuple(value.value.shape)):
            raise BadGraph(
                f"the bytes of constant {op.name} do not match its dtype and sizes",
                got=f"{value.value.nbytes} bytes",
                near=f"{dtypes.BY_RUNTIME[value.dtype].name} {list(value.shape)}",
            )


def _of(tensor: torch.Tensor) -> int:
    return dtypes.to_ge(tensor.dtype)


# Subgraphs


def _fit(graph: Graph, op: Op) -> None:
    """Make the subgraphs of an op accept all of its inputs in order, and return its outputs in order."""
    offset = 1 if op.type in (*IF, *CASES) else 0
    for name in op.subgraphs:
        called = graph.subgraphs[name]
        _fit_inputs(called, op, len(op.inputs) - offset, offset)
        _fit_outputs(called, op)
        take_runtime_attrs(called)


def _fit_inputs(called: Graph, op: Op, count: int, offset: int) -> None:
    places: dict[int, Op] = {}
    for data in called.inputs:
        place = _number(data.attrs, PARENT, _number(data.attrs, "index", 0) + offset) - offset
        if not 0 <= place < count or place in places:
            raise BadGraph(
                f"{data.name} of subgraph {called.name} refers to input {place + offset} of {op.name}, which "
                "does not exist or is used twice",
                got=f"{op.type} with {count + offset} inputs",
            )
        places[place] = data
    for place in range(count):
        if place not in places:
            places[place] = _unread(called)
        places[place].attrs["index"] = Int(place)


def _unread(called: Graph) -> Op:
    """Add an input that the subgraph does not read."""
    op = Op(called.new_name("unread"), "Data")
    op.slots, op.outputs = [Slot(Desc("x"), None)], [Tensor(op, 0, "y")]
    called.add(op)
    called.ops.insert(0, called.ops.pop())
    return op


def _fit_outputs(called: Graph, op: Op) -> None:
    output = called.output
    slots = output.slots if output is not None else []
    order = [_number(slot.desc.attrs, PARENT, place) for place, slot in enumerate(slots)]
    wanted = 1 if op.type in WHILE and called.name == op.subgraphs[0] else len(op.outputs)
    if sorted(order) != list(range(wanted)):
        raise BadGraph(
            f"subgraph {called.name} must return the {wanted} outputs of {op.name}", got=f"outputs {order}"
        )
    if output is not None:
        output.slots = [slot for _, slot in sorted(zip(order, slots, strict=True), key=lambda pair: pair[0])]


def _number(attrs: dict[str, Attr], name: str, default: int) -> int:
    found = attrs.get(name)
    return int(found.value) if isinstance(found, Int) else default


# Case ops


def _choose(graph: Graph, part: Graph, case: Op) -> Op:
    """Replace a Case by an If for its first branch; return the op that selects among the other branches.

    As the op is defined, an index out of range selects the last branch.
    """
    number, *given = case.inputs
    first, *others = case.subgraphs
    if not others:
        case.type, case.slots = CALLS[0], _slots("args", given)
        return case
    rest = None
    with part:
        kind = dtypes.BY_NAME["INT32"].runtime
        is_first = add_op("Equal", {"x1": number, "x2": Const(0, kind)}, {}, [("y", None)])
        if len(others) > 1:
            given = [add_op("Sub", {"x1": number, "x2": Const(1, kind)}, {}, [("y", None)]), *given]
    if len(others) > 1:
        first = _with_number(graph, first)
        others, rest = _among(graph, case, others, len(given))
    case.type, case.subgraphs = IF[0], [first, others[0]]
    case.slots = [Slot(Desc("cond"), is_first), *_slots("input", given)]
    sort_ops(part)
    return case if rest is None else _choose(graph, graph.subgraphs[others[0]], rest)


def _slots(name: str, tensors: list[Tensor]) -> list[Slot]:
    return [Slot(Desc(f"{name}{place}"), tensor) for place, tensor in enumerate(tensors)]


def _new_name(graph: Graph, stem: str) -> str:
    return next(name for n in itertools.count() if (name := f"{stem}_{n}") not in graph.subgraphs)


def _with_number(graph: Graph, name: str) -> str:
    """Copy a branch, with the branch index as an additional first input."""
    branch = copy_graph(graph.subgraphs[name])
    branch.name = _new_name(graph, name)
    for data in branch.inputs:
        data.attrs["index"] = Int(data.attrs["index"].value + 1)
    _unread(branch).attrs["index"] = Int(0)
    take_runtime_attrs(branch)
    graph.subgraphs[branch.name] = branch
    return branch.name


def _among(graph: Graph, case: Op, branches: list[str], count: int) -> tuple[list[str], Op]:
    """Add a branch that selects among these branches; its inputs are the branch index, then theirs."""
    branch = graph.subgraph(_new_name(graph, case.name))
    with branch:
        given = [add_op("Data", {"x": None}, {"index": Int(place)}, [("y", None)]) for place in range(count)]
        inputs = {"branch_index": given[0], "input": given[1:]}
        outputs = [("output", len(case.outputs))]
        results = add_op("Case", inputs, {}, outputs, subgraphs=branches)
        add_op(OUTPUT_TYPE, {"input": results}, {}, [])
    take_runtime_attrs(branch)
    return [branch.name], results[0].op


# Calls


def _refuse_many(graph: Graph) -> None:
    """Raise `BadGraph` if inlining would create too many ops; they are counted before any is created."""
    counts: dict[str, int] = {}
    for part in _called_first(graph):
        calls = [counts[op.subgraphs[0]] for op in part.ops if op.type in CALLS]
        counts[part.name] = len(part.ops) + sum(calls)
        if calls and counts[part.name] > MANY_OPS:
            raise BadGraph(f"{part.name} has more than {MANY_OPS} ops after its calls are inlined")


def _inline(part: Graph, call: Op, called: Graph) -> None:
    """Replace a call by the ops of the subgraph."""
    copied = copy_graph(called)
    given = dict(zip((data.outputs[0] for data in copied.inputs), call.inputs, strict=True))
    ends = copied.output
    inner = [op for op in copied.ops if op.type not in (*INPUT_TYPES, OUTPUT_TYPE)]
    for op in inner:
        op.name = f"{call.name}/{op.name}"
        op.slots = [Slot(slot.desc, slot.tensor and given.get(slot.tensor, slot.tensor)) for slot in op.slots]
        op.after = [before for before in op.after if before in inner] + call.after
    returned = [given.get(tensor, tensor) for tensor in copied.returned]
    last = [tensor.op for tensor in returned] + (ends.after if ends is not None else [])
    for old, new in zip(call.outputs, returned, strict=True):
        part.replace(old, new)
        part.results = [
            replace(result, tensor=new) if getattr(result, "tensor", None) is old else result
            for result in part.results
        ]
    for op in part.ops:
        if call in op.after:
            op.after = [before for before in op.after if before is not call] + last
    at = part.ops.index(call)
    part.ops[at : at + 1] = inner
    if len({op.name for op in part.ops}) != len(part.ops):
        raise BadGraph(f"{part.name} has ops with the same names as ops of {call.name}")
    part.by_name = {op.name: op for op in part.ops}
