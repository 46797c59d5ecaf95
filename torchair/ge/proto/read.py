"""Wire message -> Graph.

Nothing in a message is lost: attributes of unknown kinds become `Raw`, and all other fields, known or
unknown, become the serialized `rest` of their graph, op or descriptor. Control edges are written back before
data edges, and a graph whose ops are not in an executable order is sorted; otherwise writing returns the same
message.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from torchair.core import dtypes
from torchair.core.errors import BadGraph
from torchair.core.lazy_module import LazyModule
from torchair.ge.attr import (
    BY_PROTOTYPE,
    KNOWN,
    Attr,
    Bool,
    DataType,
    Float,
    Int,
    Layouts,
    ListBool,
    ListDataType,
    ListFloat,
    ListInt,
    ListListFloat,
    ListListInt,
    ListStr,
    Raw,
    Str,
    Tensor,
)  # fmt: skip
from torchair.ge.builder.torch_kernel_binding import restore
from torchair.ge.graph import INPUT_TYPES, Desc, Graph, Op, Slot
from torchair.ge.graph import Tensor as Edge
from torchair.ge.proto import schema
from torchair.ge.proto.equality import same_attr
from torchair.ge.prototype import Prototype
from torchair.ge.schema.descriptor import input_desc
from torchair.ge.schema.runtime_attrs import take_runtime_attrs
from torchair.ge.toposort import sort_ops

if TYPE_CHECKING:
    from google.protobuf import message as protobuf
else:
    protobuf = LazyModule("google.protobuf.message")

_SCALARS: dict[str, type[Attr]] = {
    kind.field: kind for kind in (Int, Float, Bool, Str, DataType, ListListInt, ListListFloat)
}
_LISTS = (ListStr, ListInt, ListFloat, ListBool, ListDataType)


def from_model(source: bytes | protobuf.Message) -> Graph:
    """Return the main graph of a `ModelDef` (a message or its bytes), with the others as its sub-graphs."""
    model = _parse("ModelDef", source)
    if not model.graph:
        raise BadGraph("the model has no graph", next="check that this is an .air file")
    parts = [_graph(message) for message in model.graph]
    main = parts[0]
    main.subgraphs = {part.name: part for part in parts[1:]}
    if len(main.subgraphs) != len(parts) - 1:
        raise BadGraph("two sub-graphs have the same name", got=", ".join(part.name for part in parts[1:]))
    model.ClearField("graph")
    main.model_rest = _rest(model)
    return main


def from_graph_def(source: bytes | protobuf.Message) -> Graph:
    """Return the graph of a single `GraphDef`."""
    return _graph(_parse("GraphDef", source))


def _parse(name: str, source: bytes | protobuf.Message) -> Any:
    """Copy into a message of torchair's own schema: reading consumes it, and the caller's may use another
    registration.
    """
    data = source if isinstance(source, bytes) else source.SerializeToString()
    message = schema.message(name)
    try:
        message.ParseFromString(data)
    except protobuf.DecodeError as error:
        raise BadGraph(
            f"not a graph file: {len(data)} bytes cannot be parsed as a {name}",
            next="check that the file is complete and is an .air file",
        ) from error
    return message


def _graph(message: Any) -> Graph:
    graph = Graph("graph")
    graph.name = message.name
    graph.attrs = _attributes(message, None)
    for written in message.op:
        op = Op(written.name, written.type)
        if op.name in graph.by_name:
            raise BadGraph(
                f"{graph.name} has two ops called {op.name!r}",
                got=f"{op.type}, {graph.by_name[op.name].type}",
            )
        op.outputs = [_output(op, number, desc) for number, desc in enumerate(written.output_desc)]
        graph.ops.append(op)
        graph.by_name[op.name] = op
    for op, written in zip(graph.ops, message.op, strict=True):
        _fill(graph, op, written)
    restore(graph)
    _clear(message, "name", "op", "attr")
    graph.rest = _rest(message)
    sort_ops(graph)
    take_runtime_attrs(graph)
    return graph


def _output(op: Op, number: int, message: Any) -> Edge:
    tensor = Edge(op, number, message.name)
    tensor.desc = _desc(message)
    return tensor


def _fill(graph: Graph, op: Op, written: Any) -> None:
    edges = [edge for edge in written.input if not edge.endswith(":-1")]
    op.after = [_producer(graph, op, edge) for edge in written.input if edge.endswith(":-1")]
    if len(edges) > len(written.input_desc):
        raise BadGraph(
            f"{op.name} has {len(edges)} input edges and {len(written.input_desc)} input descriptors",
            got=", ".join(edges),
        )
    for number, message in enumerate(written.input_desc):
        edge = edges[number] if number < len(edges) else ""
        tensor = None
        if edge:
            producer = _producer(graph, op, edge)
            index = int(edge.rpartition(":")[2])
            if index >= len(producer.outputs):
                raise BadGraph(
                    f"{op.name} reads {edge!r}, but {producer.name} has {len(producer.outputs)} outputs"
                )
            tensor = producer.outputs[index]
        op.slots.append(_slot(op, _desc(message), tensor))
    op.attrs = _attributes(written, op.prototype)
    op.subgraphs = list(written.subgraph_name)
    _clear(written, "name", "type", "input", "input_desc", "output_desc", "subgraph_name", "attr")
    op.rest = _rest(written)


def _producer(graph: Graph, op: Op, edge: str) -> Op:
    name, colon, index = edge.rpartition(":")
    if not colon or not index.lstrip("-").isdigit() or name not in graph.by_name:
        near = difflib.get_close_matches(name, graph.by_name, n=3)
        raise BadGraph(
            f"{op.name} reads {edge!r}, which is not an output of an op in {graph.name}", near=", ".join(near)
        )
    return graph.by_name[name]


def _slot(op: Op, stored: Desc, tensor: Edge | None) -> Slot:
    """Read a slot.

    A descriptor that is a mere copy of the producer's stays one, so that it follows when the producer
    changes.
    """
    slot = Slot(Desc(stored.name), tensor)
    if tensor is None and op.type not in INPUT_TYPES:
        slot.desc = stored
    elif not _is_copy(stored, input_desc(op, slot)):
        stored.inherit = False
        slot.desc = stored
    return slot


def _is_copy(stored: Desc, expected: Desc) -> bool:
    same = (stored.dtype, stored.shape, stored.layout, stored.device, stored.rest) == (
        expected.dtype, expected.shape, expected.layout, expected.device, expected.rest,
    )  # fmt: skip
    return (
        same
        and stored.attrs.keys() == expected.attrs.keys()
        and all(same_attr(value, expected.attrs[name]) for name, value in stored.attrs.items())
    )


def _desc(message: Any) -> Desc:
    desc = Desc(
        message.name, layout=message.layout, device=message.device_type, attrs=_attributes(message, None)
    )
    if message.dtype in dtypes.BY_WIRE:
        desc.dtype = dtypes.BY_WIRE[message.dtype].runtime
        message.ClearField("dtype")
    if message.HasField("shape"):
        desc.shape = tuple(message.shape.dim)
    _clear(message, "name", "layout", "device_type", "shape", "attr")
    desc.rest = _rest(message)
    return desc


def _attributes(message: Any, proto: Prototype | None) -> dict[str, Attr]:
    """Return attributes sorted by name: the order of a protobuf map has no meaning."""
    rows = proto.attr_by_name if proto is not None else {}
    results: dict[str, Attr] = {}
    for name in sorted(message.attr):
        wanted = BY_PROTOTYPE.get(rows[name].type) if name in rows else KNOWN.get(name)
        results[name] = attribute(message.attr[name], wanted)
    return results


def attribute(message: Any, wanted: type[Attr] | None = None) -> Attr:
    """Convert an `AttrDef` to an attribute; `wanted` decides where the wire is ambiguous (empty lists)."""
    which = message.WhichOneof("value")
    if which == "t":
        return _tensor(message)
    kind = _list_kind(message, wanted) if which == "list" else _SCALARS.get(which or "")
    if kind is None:
        return _raw(message)
    try:
        result = kind(kind.get(message))
    except UnicodeDecodeError:
        return _raw(message)
    if which == "list":
        result.stored_tag = message.list.val_type
    again = schema.attr_def()
    result.merge_to(again)
    # Sign and payload of a NaN do not survive in Python, and have no meaning.
    is_same = again.SerializeToString() == message.SerializeToString() or _has_nan(result.value)
    return result if is_same else _raw(message)


def _has_nan(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)


def _raw(message: Any) -> Attr:
    return Raw(Raw.get(message))


def _list_kind(message: Any, wanted: type[Attr] | None) -> type[Attr] | None:
    """Return the wanted kind if it fits, else the kind of its tag or content.

    An untagged empty list is read as strings.
    """
    candidates: tuple[type[Attr], ...] = (*_LISTS, Layouts)
    if wanted in candidates:
        candidates = (wanted, *candidates)
    try:
        return next((kind for kind in candidates if kind.get(message) is not None), None)
    except UnicodeDecodeError:
        return None


def _tensor(message: Any) -> Attr:
    """Read a tensor with at most one copy of its bytes; an unusual message is passed on unchanged."""
    whole = message.t
    desc = schema.message("TensorDescriptor")
    desc.CopyFrom(whole.desc)
    known = desc.dtype in dtypes.BY_WIRE
    dtype = dtypes.BY_WIRE[desc.dtype].runtime if known else dtypes.UNDEFINED
    shape = tuple(desc.shape.dim) if desc.HasField("shape") else None
    layout = desc.layout
    _clear(desc, *(("dtype",) if known else ()), "shape", "layout")
    result = Tensor.from_bytes(whole.data, dtype, shape, layout, _rest(desc))
    again = schema.message("TensorDescriptor")
    result.describe_to(again)
    usual = (
        whole.HasField("desc")
        and again == whole.desc
        and _only(message, "t")
        and _only(whole, "desc", "data")
    )
    return result if usual else _raw(message)


def _only(message: Any, *fields: str) -> bool:
    """Return whether only these fields are set, and no unknown ones."""
    sizes = 0
    for descriptor, value in message.ListFields():
        if descriptor.name not in fields:
            return False
        sizes += _field_size(value)
    return message.ByteSize() == sizes


def _field_size(value: Any) -> int:
    """Return the size in bytes of a length-delimited field with a one-byte tag."""
    length = len(value) if isinstance(value, bytes) else value.ByteSize()
    return 1 + max(1, -(-length.bit_length() // 7)) + length


def _clear(message: Any, *fields: str) -> None:
    for field in fields:
        message.ClearField(field)


def _rest(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True)) if message.ByteSize() else b""


__all__ = ["attribute", "from_graph_def", "from_model"]
