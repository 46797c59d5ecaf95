"""Declare the protobuf schema of IR graphs (package `ge.proto`, proto3) as text; create classes on first use.

The schema uses its own descriptor pool, so another library may register `ge.proto` in the same process, and
no protoc is needed. A line is `number name: type`, with `*` for repeated and `(group)` for a member of a
oneof.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from torchair.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
else:
    descriptor_pb2 = LazyModule("google.protobuf.descriptor_pb2")
    descriptor_pool = LazyModule("google.protobuf.descriptor_pool")
    message_factory = LazyModule("google.protobuf.message_factory")

PACKAGE = "ge.proto"

MESSAGES: dict[str, str] = {
    "ModelDef": """
        1 name: string; 2 version: uint32; 3 custom_version: string; 7 graph: GraphDef*;
        11 attr: map<string, AttrDef>; 12 attr_groups: AttrGroups""",
    "GraphDef": """
        1 name: string; 4 input: string*; 5 output: string*; 6 op: OpDef*; 11 attr: map<string, AttrDef>;
        12 attr_groups: AttrGroups""",
    "OpDef": """
        1 name: string; 2 type: string; 5 input: string*; 10 attr: map<string, AttrDef>;
        11 attr_groups: AttrGroups; 20 has_out_attr: bool; 21 id: int64; 22 stream_id: int64;
        23 input_name: string*; 24 src_name: string*; 25 src_index: int64*; 26 dst_name: string*;
        27 dst_index: int64*; 28 input_i: int64*; 29 output_i: int64*; 30 workspace: int64*;
        31 workspace_bytes: int64*; 32 is_input_const: bool*; 33 input_desc: TensorDescriptor*;
        34 output_desc: TensorDescriptor*; 35 subgraph_name: string*""",
    "TensorDescriptor": """
        1 name: string; 2 dtype: DataType; 3 shape: ShapeDef; 4 layout: string;
        5 attr: map<string, AttrDef>; 6 attr_groups: AttrGroups; 9 has_out_attr: bool; 10 size: int64;
        11 weight_size: int64; 12 reuse_input: bool; 13 output_tensor: bool; 14 device_type: string;
        15 input_tensor: bool; 16 real_dim_cnt: int64; 17 reuse_input_index: int64; 18 data_offset: int64;
        19 cmps_size: int64; 20 cmps_tab: string; 21 cmps_tab_offset: int64""",
    "TensorDef": "1 desc: TensorDescriptor; 2 data: bytes",
    "ShapeDef": "1 dim: int64*",
    "NamedAttrs": "1 name: string; 2 attr: map<string, AttrDef>",
    "AttrDef": """
        1 list: ListValue (value); 2 s: bytes (value); 3 i: int64 (value); 4 f: float (value);
        5 b: bool (value); 7 bt: bytes (value); 10 func: NamedAttrs (value);
        11 td: TensorDescriptor (value); 12 t: TensorDef (value); 13 g: GraphDef (value);
        14 list_list_int: ListListInt (value); 15 dt: int64 (value);
        16 list_list_float: ListListFloat (value); 17 expression: bytes (value)""",
    "AttrDef.ListValue": """
        2 s: bytes*; 3 i: int64*; 4 f: float*; 5 b: bool*; 7 bt: bytes*; 8 td: TensorDescriptor*;
        9 t: TensorDef*; 10 g: GraphDef*; 11 na: NamedAttrs*; 12 dt: int64*; 20 val_type: ListValueType""",
    "AttrDef.ListListInt": "1 list_list_i: ListInt*",
    "AttrDef.ListListInt.ListInt": "1 list_i: int64*",
    "AttrDef.ListListFloat": "1 list_list_f: ListFloat*",
    "AttrDef.ListListFloat.ListFloat": "1 list_f: float*",
    # Attribute groups: later stages of a vendor toolchain add them; torchair preserves them.
    "AttributeDef": """
        1 s: bytes (value); 2 i: int64 (value); 3 f: float (value); 4 b: bool (value); 5 bt: bytes (value)""",
    "OtherGroupDef": "1 attr: map<string, AttributeDef>",
    "TensorDescAttrGroupsDef": "1 origin_symbol_shape: string*; 2 symbolic_value: string*",
    "InputSourceDef": "1 input_data_idx: int32; 2 dim_idx: int64",
    "ReplacementDef": "1 replace_expr: string; 2 rank: int32",
    "SymbolCheckInfoDef": "1 expr: string; 2 file: string; 3 line: int64; 4 dfx: string",
    "ShapeEnvSettingDef": "1 specialize_zero_one: bool; 2 dynamic_mode: int32",
    "SymbolInfoDef": "1 symbols: string*",
    "ShapeEnvAttrGroupsDef": """
        1 symbol_to_value: map<string, int64>; 2 value_to_symbol: map<int64, SymbolInfoDef>;
        3 symbol_to_source: map<string, InputSourceDef>; 4 replacements: map<string, ReplacementDef>;
        5 symbol_check_infos: SymbolCheckInfoDef*; 6 symbol_assert_infos: SymbolCheckInfoDef*;
        7 shape_setting: ShapeEnvSettingDef; 8 unique_sym_id: uint64""",
    "SchedInfoDef": "1 exec_order: int64; 2 axis: int64*; 3 loop_axis: int64; 4 exec_condition: int32",
    "ApiInfoDef": "1 type: int32; 2 compute_type: int32; 3 unit: int32",
    "MemAttrDef": """
        1 tensor_id: int64; 2 alloc_type: int32; 3 position: int32; 4 hardware: int32; 5 buf_ids: int64*;
        6 name: string; 7 reuse_id: int64""",
    "MemQueueAttrDef": "1 id: int64; 2 depth: int64; 3 buf_num: int64; 4 name: string",
    "MemBufAttrDef": "1 id: int64; 2 name: string",
    "MemOptAttrDef": "1 reuse_id: int64; 2 ref_tensor: int64; 3 merge_scope: int64",
    # Newer writers have `align` as a string: it then becomes an unknown field, which is preserved.
    "AxisDef": """
        1 id: int64; 2 name: string; 3 axis_type: int32; 4 bind_block: bool; 5 size: string;
        6 align: int32; 7 from: int64*; 8 split_pair_other_id: int64; 9 allow_oversize_axis: bool;
        10 allow_unaligned_tail: bool""",
    "AscendCIROpAttrGroupsDef": "1 name: string; 2 type: string",
    "AscTensorAttrGroupsDef": """
        1 dtype: int64; 2 axis_ids: int64*; 3 repeats: string*; 4 strides: string*;
        5 vectorized_axis: int64*; 6 vectorized_strides: string*; 7 mem: MemAttrDef;
        8 que: MemQueueAttrDef; 9 buf: MemBufAttrDef; 10 opt: MemOptAttrDef""",
    "AscGraphAttrGroupsDef": "1 tiling_key: int64; 2 axis: AxisDef*; 3 type: int64; 4 size_var: string*",
    "AscIrAttrDef": "1 attr: map<string, AttrDef>",
    "TmpBufDescDef": "1 size: string; 2 life_time_axis_id: int64",
    "TmpBufferGroupDef": "1 buf_desc: TmpBufDescDef; 2 mem: MemAttrDef; 3 id: int64",
    "AscNodeAttrGroupsDef": """
        1 name: string; 2 type: string; 3 sched: SchedInfoDef; 4 api: ApiInfoDef;
        5 ir_attr_def: AscIrAttrDef; 6 tmp_buffers: TmpBufferGroupDef*""",
    "AttrGroupDef": """
        2 op_attr_group: AscendCIROpAttrGroupsDef (attr_group);
        3 tensor_attr_group: TensorDescAttrGroupsDef (attr_group);
        4 shape_env_attr_group: ShapeEnvAttrGroupsDef (attr_group);
        5 asc_graph_attr_group: AscGraphAttrGroupsDef (attr_group);
        6 asc_node_attr_group: AscNodeAttrGroupsDef (attr_group);
        7 asc_tensor_attr_group: AscTensorAttrGroupsDef (attr_group)""",
    "AttrGroups": "1 other_group_def: OtherGroupDef; 2 attr_group_def: AttrGroupDef*",
}  # fmt: skip

# Values count from 0. These are the wire numbers of data types, used in descriptors; attributes use the
# runtime numbers.
ENUMS: dict[str, str] = {
    "DataType": """
        DT_UNDEFINED DT_FLOAT DT_FLOAT16 DT_INT8 DT_UINT8 DT_INT16 DT_UINT16 DT_INT32 DT_INT64 DT_UINT32
        DT_UINT64 DT_BOOL DT_DOUBLE DT_STRING DT_DUAL_SUB_INT8 DT_DUAL_SUB_UINT8 DT_COMPLEX64 DT_COMPLEX128
        DT_QINT8 DT_QINT16 DT_QINT32 DT_QUINT8 DT_QUINT16 DT_RESOURCE DT_STRING_REF DT_DUAL DT_VARIANT DT_BF16
        DT_INT4 DT_UINT1 DT_INT2 DT_UINT2 DT_COMPLEX32 DT_HIFLOAT8 DT_FLOAT8_E5M2 DT_FLOAT8_E4M3FN
        DT_FLOAT8_E8M0 DT_FLOAT6_E3M2 DT_FLOAT6_E2M3 DT_FLOAT4_E2M1 DT_FLOAT4_E1M2 DT_HIFLOAT4""",
    "AttrDef.ListValue.ListValueType": """
        VT_LIST_NONE VT_LIST_STRING VT_LIST_INT VT_LIST_FLOAT VT_LIST_BOOL VT_LIST_BYTES VT_LIST_TENSOR_DESC
        VT_LIST_TENSOR VT_LIST_GRAPH VT_LIST_NAMED_ATTRS VT_LIST_DATA_TYPE""",
}  # fmt: skip

_ROW = re.compile(r"(\d+) (\w+): ([^*(]+?)(\*?)(?: \((\w+)\))?")
_MAP = re.compile(r"map<(\w+), (\w+)>")
_SCALARS = ("string", "bytes", "bool", "float", "int32", "int64", "uint32", "uint64")


def message(name: str) -> Any:
    """Return a new, empty message: `message("ModelDef")`."""
    return _classes()[name]()


def attr_def() -> Any:
    """Return a new, empty `AttrDef`."""
    return _classes()["AttrDef"]()


@functools.cache
def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    make: Any = getattr(message_factory, "GetMessageClass", None)
    if make is None:  # protobuf before 4.22 makes classes with a factory object
        make = getattr(message_factory.MessageFactory(pool), "GetPrototype")  # noqa: B009
    return {name: make(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="torchair/ge_ir.proto", package=PACKAGE, syntax="proto3")
    results: dict[str, Any] = {}
    for name, rows in MESSAGES.items():
        parent, _, own = name.rpartition(".")
        results[name] = (
            results[parent].nested_type.add(name=own) if parent else file.message_type.add(name=own)
        )
        for row in rows.split(";"):
            _add_field(results[name], name, row.strip())
    for name, values in ENUMS.items():
        parent, _, own = name.rpartition(".")
        enum = results[parent].enum_type.add(name=own) if parent else file.enum_type.add(name=own)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    return file


def _add_field(holder: Any, scope: str, row: str) -> None:
    parsed = _ROW.fullmatch(row)
    assert parsed, f"not a field of the schema: {row!r}"
    number, name, kind, star, group = parsed.groups()
    types = descriptor_pb2.FieldDescriptorProto
    field = holder.field.add(name=name, number=int(number), label=types.LABEL_OPTIONAL)
    if pair := _MAP.fullmatch(kind):
        entry = holder.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for at, (key, of) in enumerate(zip(("key", "value"), pair.groups(), strict=True), start=1):
            _set_type(entry.field.add(name=key, number=at, label=types.LABEL_OPTIONAL), scope, of)
        field.label, field.type = types.LABEL_REPEATED, types.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{scope}.{entry.name}"
        return
    if star:
        field.label = types.LABEL_REPEATED
    if group:
        if not holder.oneof_decl:
            holder.oneof_decl.add(name=group)
        field.oneof_index = 0
    _set_type(field, scope, kind)


def _set_type(field: Any, scope: str, kind: str) -> None:
    """Set the type of a field: a scalar by its word; a message or enum by name, looked up from the inside
    out.
    """
    types = descriptor_pb2.FieldDescriptorProto
    if kind in _SCALARS:
        field.type = getattr(types, f"TYPE_{kind.upper()}")
        return
    found = next(name for name in (f"{scope}.{kind}", kind) if name in MESSAGES or name in ENUMS)
    field.type = types.TYPE_ENUM if found in ENUMS else types.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{found}"
