"""Graph -> wire message. The wire omits what a `Graph` does not carry: origins, Python objects of a
TorchOp.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torchair.core import dtypes
from torchair.core.errors import BadGraph, NotPossible
from torchair.ge.attr import Attr, Int, Layouts, ListInt, ListStr
from torchair.ge.builder.torch_kernel_binding import shown
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Desc, Graph, Op
from torchair.ge.proto import schema
from torchair.ge.schema.descriptor import input_desc, output_desc
from torchair.ge.schema.runtime_attrs import exact_attrs, runtime_attrs

# Maximum size of one protobuf message in bytes.
LIMIT = 2**31 - 1
_PLACEMENTS = {"CPU": 0, "NPU": 1}
_CONTROL = ":-1"


def to_model(graph: Graph, *, normalised: bool = False, runtime: bool = False) -> Any:
    """Return a `ModelDef`: the graph, then its sub-graphs.

    `normalised` is the form for an engine or an `.air` file. `runtime` adds how inputs are fed, what is
    returned and the digits of numbers that 32 bits do not hold, so that `read.from_model` returns a graph
    that runs like this one.
    """
    model = schema.message("ModelDef")
    model.MergeFromString(graph.model_rest)
    for part in (graph, *graph.subgraphs.values()):
        _refuse_objects(part)
        written = to_graph_def(part)
        if runtime:
            facts = exact_attrs(part) | (runtime_attrs(part) if part is graph else {})
            _attributes(written, facts, part.name)
        if normalised:
            add_graph_attributes(written)
            normalise(written)
        model.graph.append(written)
    return model


def to_bytes(graph: Graph, *, normalised: bool = False, runtime: bool = False) -> bytes:
    """Return the model as bytes, always the same ones for the same graph."""
    model = to_model(graph, normalised=normalised, runtime=runtime)
    size = model.ByteSize()
    if size > LIMIT:
        raise NotPossible(
            f"the graph {graph.name} has {size} bytes, but one file can hold {LIMIT}",
            next="export the weights to separate files",
        )
    return bytes(model.SerializeToString(deterministic=True))


def to_graph_def(graph: Graph) -> Any:
    """Return a `GraphDef` of this graph alone."""
    written = schema.message("GraphDef")
    written.MergeFromString(graph.rest)
    written.name = graph.name
    _attributes(written, graph.attrs, graph.name)
    for op in graph.ops:
        _op(op, written.op.add())
    return written


def _op(op: Op, written: Any) -> None:
    written.MergeFromString(op.rest)
    written.name, written.type = op.name, op.type
    # Control edges come first, as builders from prototypes write them.
    written.input.extend(before.name + _CONTROL for before in op.after)
    slots, outputs, attrs = shown(op)
    for slot in slots:
        # A graph input has a descriptor for its input, but no edge.
        if slot.tensor is not None or op.type not in INPUT_TYPES:
            written.input.append(slot.tensor.tensor if slot.tensor is not None else "")
        _desc(input_desc(op, slot), written.input_desc.add())
    for tensor in outputs:
        _desc(output_desc(tensor), written.output_desc.add())
    written.subgraph_name.extend(op.subgraphs)
    _attributes(written, attrs, op.name)


def _desc(desc: Desc, written: Any) -> None:
    written.MergeFromString(desc.rest)
    written.name, written.layout, written.device_type = desc.name, desc.layout, desc.device
    if desc.dtype != dtypes.UNDEFINED:
        written.dtype = dtypes.BY_RUNTIME[desc.dtype].wire
    if desc.shape is not None:
        written.shape.SetInParent()
        written.shape.dim.extend(desc.shape)
    _attributes(written, desc.attrs, desc.name)


def _attributes(written: Any, attrs: dict[str, Attr], owner: str) -> None:
    for name, value in attrs.items():
        try:
            value.merge_to(written.attr[name])
        except (ValueError, TypeError, OverflowError) as error:
            raise BadGraph(
                f"attribute {name!r} of {owner!r} cannot be written: {error}", got=repr(value)
            ) from error


def _refuse_objects(graph: Graph) -> None:
    for op in graph.ops:
        if op.objects:
            raise NotPossible(
                f"{op.name} calls {op.attrs['target'].value} with Python objects that cannot be written "
                "to a file",
                at=op.origin.source if op.origin else "",
                got=", ".join(f"{key}: {type(value).__name__}" for key, value in op.objects.items()),
                next="register a converter for this op, or remove it from the exported or cached part of "
                "the model",
            )


def add_graph_attributes(written: Any, *, npu: bool | None = None) -> None:
    """Write where inputs live, the data types of the outputs and the kind of engine.

    `npu` None means: as in this process.
    """
    inputs = sorted((op for op in written.op if op.type in INPUT_TYPES), key=lambda op: op.attr["index"].i)
    placements = [_PLACEMENTS.get(op.output_desc[0].device_type, -1) for op in inputs]
    returned = [desc.dtype for op in written.op if op.type == OUTPUT_TYPE for desc in op.input_desc]
    kinds = [dtypes.BY_WIRE[number].runtime for number in returned]
    for name, numbers in (("_input_placements", placements), ("_output_dtypes", kinds)):
        attr = ListInt(numbers)
        attr.stored_tag = 0  # these two lists are written without a tag
        attr.merge_to(written.attr[name])
    Int(int("torch_npu" in sys.modules if npu is None else npu)).merge_to(written.attr["_executor_type"])


def normalise(written: Any) -> None:
    """Complete a `GraphDef` before it leaves torchair: fill in name lists, layouts and data types."""
    for op in written.op:
        for side, descs in (("input", op.input_desc), ("output", op.output_desc)):
            ListStr([desc.name for desc in descs]).merge_to(op.attr[f"_{side}_name_key"])
            ListInt(range(len(descs))).merge_to(op.attr[f"_{side}_name_value"])
        if op.type in INPUT_TYPES:
            continue
        for desc in (*_connected(op), *op.output_desc):
            desc.layout = "ND"
            desc.dtype = desc.dtype or dtypes.BY_NAME["FLOAT"].wire
        for name, descs in (("input_layout_info", op.input_desc), ("output_layout_info", op.output_desc)):
            for number, layout in (Layouts.get(op.attr[name]) or ()) if name in op.attr else ():
                if number >= len(descs):
                    raise BadGraph(
                        f"{name!r} of {op.name!r} refers to descriptor {number}, but there are only "
                        f"{len(descs)}"
                    )
                descs[number].layout = layout


def _connected(op: Any) -> Iterator[Any]:
    edges = [edge for edge in op.input if not edge.endswith(_CONTROL)]
    return (desc for edge, desc in zip(edges, op.input_desc, strict=False) if edge)
