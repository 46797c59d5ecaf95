"""The protobuf schema of graph files once more, from the tables of the format alone: nothing here knows the
package. `number name type`; `*` is repeated, `|` a member of a oneof; further messages are carried and their
fields left unknown.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

ROWS = {
    "ModelDef": "1 name string, 2 version uint32, 3 custom_version string, 7 graph GraphDef*, 11 attr map",
    "GraphDef": "1 name string, 4 input string*, 5 output string*, 6 op OpDef*, 11 attr map",
    "OpDef": (
        "1 name string, 2 type string, 5 input string*, 10 attr map, 20 has_out_attr bool, 21 id int64, "
        "22 stream_id int64, 23 input_name string*, 24 src_name string*, 25 src_index int64*, "
        "26 dst_name string*, 27 dst_index int64*, 28 input_i int64*, 29 output_i int64*, "
        "30 workspace int64*, 31 workspace_bytes int64*, 32 is_input_const bool*, "
        "33 input_desc TensorDescriptor*, 34 output_desc TensorDescriptor*, 35 subgraph_name string*"
    ),
    "TensorDescriptor": (
        "1 name string, 2 dtype enum, 3 shape ShapeDef, 4 layout string, 5 attr map, 9 has_out_attr bool, "
        "10 size int64, 11 weight_size int64, 12 reuse_input bool, 13 output_tensor bool, "
        "14 device_type string, 15 input_tensor bool, 16 real_dim_cnt int64, 17 reuse_input_index int64, "
        "18 data_offset int64, 19 cmps_size int64, 20 cmps_tab string, 21 cmps_tab_offset int64"
    ),
    "TensorDef": "1 desc TensorDescriptor, 2 data bytes",
    "ShapeDef": "1 dim int64*",
    "NamedAttrs": "1 name string, 2 attr map",
    "AttrDef": (
        "1 list ListValue|, 2 s bytes|, 3 i int64|, 4 f float|, 5 b bool|, 7 bt bytes|, 10 func NamedAttrs|, "
        "11 td TensorDescriptor|, 12 t TensorDef|, 13 g GraphDef|, 14 list_list_int ListListInt|, "
        "15 dt int64|, 16 list_list_float ListListFloat|, 17 expression bytes|"
    ),
    "ListValue": (
        "2 s bytes*, 3 i int64*, 4 f float*, 5 b bool*, 7 bt bytes*, 8 td TensorDescriptor*, 9 t TensorDef*, "
        "10 g GraphDef*, 11 na NamedAttrs*, 12 dt int64*, 20 val_type enum"
    ),
    "ListListInt": "1 list_list_i ListInt*",
    "ListInt": "1 list_i int64*",
    "ListListFloat": "1 list_list_f ListFloat*",
    "ListFloat": "1 list_f float*",
}
"""Names of messages are not on the wire, so nested ones stand at the top here."""
TYPES = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
MESSAGE, ENUM, ONE, MANY = 11, 14, 1, 3

# Data types: in descriptors, and in attributes.
WIRE = {
    "FLOAT": 1, "FLOAT16": 2, "INT8": 3, "INT32": 7, "INT64": 8, "BOOL": 11, "DOUBLE": 12, "BF16": 27,
    "INT4": 28,
}  # fmt: skip
RUNTIME = {"FLOAT": 0, "FLOAT16": 1, "INT8": 2, "INT32": 3, "INT64": 9, "BOOL": 12, "DOUBLE": 11, "BF16": 27}


@functools.cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="wire.proto", package="wire", syntax="proto3")
    numbers = file.enum_type.add(name="Number")
    for number in range(64):
        numbers.value.add(name=f"N{number}", number=number)
    for name, rows in ROWS.items():
        message = file.message_type.add(name=name)
        for row in rows.split(", "):
            _field(message, name, *row.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"wire.{name}")) for name in ROWS
    }


def _field(message: Any, scope: str, number: str, name: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=MANY if kind.endswith("*") else ONE)
    plain = kind.rstrip("*|")
    if kind.endswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="value")
        field.oneof_index = 0
    if plain == "map":
        entry = message.nested_type.add(name="AttrEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=ONE, type=TYPES["string"])
        entry.field.add(name="value", number=2, label=ONE, type=MESSAGE, type_name=".wire.AttrDef")
        field.label, field.type, field.type_name = MANY, MESSAGE, f".wire.{scope}.AttrEntry"
    elif plain in TYPES:
        field.type = TYPES[plain]
    else:
        field.type = ENUM if plain == "enum" else MESSAGE
        field.type_name = ".wire.Number" if plain == "enum" else f".wire.{plain}"


def message(name: str = "ModelDef", data: bytes = b"") -> Any:
    """A message of the schema, parsed from bytes."""
    made = _classes()[name]()
    made.ParseFromString(data)
    return made


def read(path: Path) -> Any:
    """The model of a file, in which nothing is unknown."""
    model = message(data=path.read_bytes())
    assert not (unknown := list(unknown_in(model))), unknown
    return model


def unknown_in(message: Any, place: str = "") -> Any:
    """The places of fields that no table has."""
    for field in UnknownFieldSet(message):
        yield f"{place}: field {field.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inner = f"{place}.{field.name}"
        if field.message_type.GetOptions().map_entry:
            for key in value:
                yield from unknown_in(value[key], f"{inner}[{key}]")
        else:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from unknown_in(item, inner)


# Graphs by hand


class Build:
    """A graph of another producer, op by op."""

    def __init__(self, name: str = "main") -> None:
        self.graph = message("GraphDef")
        self.graph.name = name

    def op(
        self,
        type: str,
        name: str,
        inputs: dict[str, str] | None = None,
        outputs: tuple[str, ...] = ("y",),
        **attrs: Any,
    ) -> Any:
        """`inputs` are edges by the name of the descriptor; a control edge has a name that begins with ^."""
        op = self.graph.op.add(name=name, type=type)
        for slot, edge in (inputs or {}).items():
            op.input.append(edge)
            if not slot.startswith("^"):
                op.input_desc.add(name=slot)
        for output in outputs:
            op.output_desc.add(name=output)
        for key, value in attrs.items():
            put(op.attr[key], value)
        return op

    def data(self, name: str, index: int, shape: list[int] | None, dtype: str = "FLOAT", **attrs: Any) -> Any:
        """A graph input."""
        op = self.op("Data", name, index=index, **attrs)
        for desc in (op.input_desc.add(name="x"), op.output_desc[0]):
            describe(desc, shape, dtype)
        return op

    def const(
        self, name: str, shape: list[int], data: bytes, dtype: str = "FLOAT", type: str = "Const"
    ) -> Any:
        """A constant of these bytes."""
        op = self.op(type, name, outputs=("y" if type == "Constant" else "",))
        describe(op.attr["value"].t.desc, shape, dtype)
        op.attr["value"].t.data = data
        describe(op.output_desc[0], shape, dtype)
        return op

    def output(self, *edges: str) -> Any:
        """NetOutput."""
        return self.op("NetOutput", "out", {f"input{n}": edge for n, edge in enumerate(edges)}, ())


def describe(desc: Any, shape: list[int] | None, dtype: str) -> None:
    desc.dtype, desc.layout = WIRE[dtype], "ND"
    if shape is not None:
        desc.shape.SetInParent()
        desc.shape.dim.extend(shape)


def put(attr: Any, value: Any) -> None:
    """A Python value as an attribute: a bool, a number, text, a list of ints; what sets itself does."""
    if callable(value):
        value(attr)
    elif isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, float):
        attr.f = value
    elif isinstance(value, str):
        attr.s = value.encode()
    else:
        attr.list.SetInParent()
        attr.list.val_type = 2
        attr.list.i.extend(value)


def model(*graphs: Build) -> Any:
    """The first graph, and sub-graphs of it."""
    made = message()
    made.graph.extend(graph.graph for graph in graphs)
    return made


def write(path: Path, *graphs: Build) -> Path:
    """The graphs as a file."""
    path.write_bytes(model(*graphs).SerializeToString())
    return path
