"""Attributes of IR ops: the twelve public kinds, and a few that only graphs themselves carry.

`Int(3)` is an object with `.value`, equal by kind and value. `repr` prints it as users write it:
`ge.attr.Int(3)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch

from torchair.core import dtypes
from torchair.core.errors import BadConverter
from torchair.core.torch_private.fake.fake_tensors import without_modes


class Attr:
    """One attribute value.

    `field` is its member of the wire message, `val_type` the list tag written there. Two writers may tag a
    list differently; `stored_tag` is the tag that was read or will be written. It is not part of the value.
    """

    field: ClassVar[str]
    tag: ClassVar[str] = ""
    val_type: ClassVar[int] = 0
    __slots__ = ("stored_tag", "value")

    def __new__(cls, value: Any, *more: Any) -> Attr:
        if isinstance(value, cls):
            return value
        return super().__new__(cls)

    def __init__(self, value: Any) -> None:  # pyright: ignore[reportInconsistentConstructor]
        if value is self:
            return
        if value is None or isinstance(value, Attr):
            raise BadConverter(
                f"ge.attr.{type(self).__name__} cannot hold {value!r}",
                next="leave the attribute out, or use the ge.attr class that fits the value",
            )
        self.value = self._clean(value)
        self.stored_tag = self.val_type

    @staticmethod
    def _clean(value: Any) -> Any:
        return value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == other.value  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.value)))

    def __repr__(self) -> str:
        return f"ge.attr.{type(self).__name__}({self.value!r})"

    def merge_to(self, proto_attr: Any) -> None:
        """Write this value into a wire `AttrDef`, replacing its content."""
        proto_attr.Clear()
        if not self.field.startswith("list."):
            setattr(proto_attr, self.field, self._to_wire(self.value))
            return
        proto_attr.list.SetInParent()
        proto_attr.list.val_type = self.stored_tag
        getattr(proto_attr.list, self.field.removeprefix("list.")).extend(map(self._to_wire, self.value))

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        """Return the Python value stored in a wire `AttrDef`, or None if it holds another kind."""
        which = proto_attr.WhichOneof("value")
        if not cls.field.startswith("list."):
            return cls._from_wire(getattr(proto_attr, cls.field)) if which == cls.field else None
        if which != "list":
            return None
        member, stored = cls.field.removeprefix("list."), proto_attr.list
        others = (other for other in LIST_MEMBERS if other != member)
        if stored.val_type not in (0, LIST_MEMBERS[member]) or any(
            len(getattr(stored, other)) for other in others
        ):
            return None
        return [cls._from_wire(item) for item in getattr(stored, member)]

    @staticmethod
    def _to_wire(item: Any) -> Any:
        return item

    @staticmethod
    def _from_wire(item: Any) -> Any:
        return item


# Member of the wire list -> the tag that names its kind.
LIST_MEMBERS = {"s": 1, "i": 2, "f": 3, "b": 4, "bt": 5, "td": 6, "t": 7, "g": 8, "na": 9, "dt": 10}


def _text_to_wire(item: str) -> bytes:
    return item.encode()


def _text_from_wire(item: bytes) -> str:
    return item.decode()


def _number_to_wire(item: float) -> float:
    # Sign and payload of a NaN have no meaning, so that files with the same meaning are equal.
    return math.nan if math.isnan(item) else item


def shortest(item: float) -> float:
    """Return the shortest decimal that means the same 32-bit float.

    The wire holds 32-bit floats: 0.1 comes back as 0.10000000149.
    """
    return float(str(np.float32(item)))


_WIRE_FORMS: dict[Callable[[Any], Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    str: (_text_to_wire, _text_from_wire),
    float: (_number_to_wire, shortest),
}


def _kind(
    name: str, tag: str, field: str, item: Callable[[Any], Any], val_type: int = 0, many: bool = False
) -> type[Attr]:
    """Create a kind of attribute that holds an `item`, or a list of items."""
    body: dict[str, Any] = {
        "__slots__": (),
        "__doc__": f"`{name}(value)`: an attribute of kind {tag}.",
        "field": field,
        "tag": tag,
        "val_type": val_type,
        "_clean": staticmethod((lambda values: [item(value) for value in values]) if many else item),
    }
    if item in _WIRE_FORMS:
        to_wire, from_wire = _WIRE_FORMS[item]
        body |= {"_to_wire": staticmethod(to_wire), "_from_wire": staticmethod(from_wire)}
    return type(name, (Attr,), body)


Int = _kind("Int", "VT_INT", "i", int)
Float = _kind("Float", "VT_FLOAT", "f", float)
Bool = _kind("Bool", "VT_BOOL", "b", bool)
Str = _kind("Str", "VT_STRING", "s", str)
DataType = _kind("DataType", "VT_DATA_TYPE", "dt", int)
ListInt = _kind("ListInt", "VT_LIST_INT", "list.i", int, 2, many=True)
ListFloat = _kind("ListFloat", "VT_LIST_FLOAT", "list.f", float, 3, many=True)
ListBool = _kind("ListBool", "VT_LIST_BOOL", "list.b", bool, 4, many=True)
# Written with the tag VT_LIST_NONE; readers accept VT_LIST_STRING too.
ListStr = _kind("ListStr", "VT_LIST_STRING", "list.s", str, 0, many=True)
ListDataType = _kind("ListDataType", "VT_LIST_DATA_TYPE", "list.dt", int, 10, many=True)


class _ListList(Attr):
    """Hold a list of lists: one wire message per row."""

    item: ClassVar[Callable[[Any], Any]]
    rows: ClassVar[str]
    row: ClassVar[str]
    __slots__ = ()

    @classmethod
    def _clean(cls, value: Any) -> list[list[Any]]:  # type: ignore[override]
        return [[cls.item(item) for item in row] for row in value]

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.Clear()
        stored = getattr(proto_attr, self.field)
        stored.SetInParent()
        for row in self.value:
            getattr(getattr(stored, self.rows).add(), self.row).extend(map(self._to_wire, row))

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        if proto_attr.WhichOneof("value") != cls.field:
            return None
        stored = getattr(getattr(proto_attr, cls.field), cls.rows)
        return [[cls._from_wire(item) for item in getattr(row, cls.row)] for row in stored]


class ListListInt(_ListList):
    """`ListListInt([[1, 2], []])`: a list of lists of ints."""

    field, tag, rows, row, item = "list_list_int", "VT_LIST_LIST_INT", "list_list_i", "list_i", int
    __slots__ = ()


class ListListFloat(_ListList):
    """`ListListFloat([[1.0], [2.0]])`: a list of lists of floats."""

    field, tag, rows, row, item = "list_list_float", "VT_LIST_LIST_FLOAT", "list_list_f", "list_f", float
    _to_wire, _from_wire = staticmethod(_number_to_wire), staticmethod(shortest)
    __slots__ = ()


@dataclass(frozen=True)
class Form:
    """Hold the facts of a wire tensor that its torch value cannot express.

    These are a GE data type that torch stores as bytes, its sizes (None: not specified), its layout, and
    `rest`, the serialized further fields of its descriptor.
    """

    dtype: int
    shape: tuple[int, ...] | None
    layout: str = "ND"
    rest: bytes = b""


class Tensor(Attr):
    """Hold the value of a `Const`: a torch tensor on the CPU, and its `form` if that adds facts. Not for
    users' ops.

    `exact` is the Python number of a rank-0 FLOAT that 32 bits do not hold: sizes are computed with all
    digits. The wire format has no field for it (`schema/runtime_attrs.py` adds one), so comparisons of
    attributes ignore it.
    """

    field = "t"
    tag = "VT_TENSOR"
    __slots__ = ("exact", "form")

    def __init__(  # pyright: ignore[reportInconsistentConstructor]
        self, value: Any, form: Form | None = None, exact: float | None = None
    ) -> None:
        super().__init__(value)
        if value is not self:
            self.form, self.exact = form, exact

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        dtype: int,
        shape: Sequence[int] | None,
        layout: str = "ND",
        rest: bytes = b"",
        exact: float | None = None,
    ) -> Tensor:
        """Create the value from its bytes on the wire and its descriptor."""
        form = Form(dtype, None if shape is None else tuple(shape), layout, rest)
        value = from_raw(data, dtype, form.shape or ())
        plain = (
            dtype not in STORED_AS_BYTES
            and dtypes.to_ge(value.dtype) == dtype
            and tuple(value.shape) == form.shape
        )
        return cast(Tensor, cls(value, None if plain and form == Form(dtype, form.shape) else form, exact))

    @property
    def dtype(self) -> int:
        """GE data type."""
        return self.form.dtype if self.form is not None else dtypes.to_ge(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in elements of that type."""
        return (self.form.shape or ()) if self.form is not None else tuple(self.value.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return False
        same_form = self.dtype == other.dtype and self.shape == other.shape
        return same_form and (self.value is other.value or raw(self.value) == raw(other.value))

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.Clear()
        self.describe_to(proto_attr.t.desc)
        proto_attr.t.data = raw(self.value)

    def describe_to(self, desc: Any) -> None:
        """Write data type, sizes and layout into a wire descriptor."""
        form = self.form or Form(self.dtype, self.shape)
        desc.SetInParent()
        desc.MergeFromString(form.rest)
        if form.layout:
            desc.layout = form.layout
        if form.dtype != dtypes.UNDEFINED:
            desc.dtype = dtypes.BY_RUNTIME[form.dtype].wire
        if form.shape is not None:
            desc.shape.SetInParent()
            desc.shape.dim.extend(form.shape)

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        if proto_attr.WhichOneof("value") != "t":
            return None
        desc = proto_attr.t.desc
        dtype = dtypes.BY_WIRE[desc.dtype].runtime if desc.dtype in dtypes.BY_WIRE else dtypes.UNDEFINED
        return from_raw(proto_attr.t.data, dtype, tuple(desc.shape.dim))


class Layouts(Attr):
    """Hold pairs (descriptor index, layout) as one wire list: `input_layout_info` and
    `output_layout_info`.
    """

    field = "list"
    tag = "VT_LAYOUTS"
    __slots__ = ()

    @staticmethod
    def _clean(value: Any) -> list[tuple[int, str]]:
        return [(int(number), str(layout)) for number, layout in value]

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.Clear()
        proto_attr.list.SetInParent()
        proto_attr.list.val_type = self.stored_tag
        proto_attr.list.i.extend(number for number, _ in self.value)
        proto_attr.list.s.extend(layout.encode() for _, layout in self.value)

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        stored = proto_attr.list if proto_attr.WhichOneof("value") == "list" else None
        others = [member for member in LIST_MEMBERS if member not in ("s", "i")]
        if (
            stored is None
            or len(stored.i) != len(stored.s)
            or any(len(getattr(stored, other)) for other in others)
        ):
            return None
        return [(number, layout.decode()) for number, layout in zip(stored.i, stored.s, strict=True)]


class Raw(Attr):
    """Hold a serialized wire attribute of a kind that is only passed on (sub-graphs, descriptors, named
    attributes).
    """

    field = "raw"
    tag = "VT_RAW"
    __slots__ = ()

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.Clear()
        proto_attr.MergeFromString(self.value)

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        return proto_attr.SerializeToString(deterministic=True)


# GE data types whose values torch cannot hold, or only as quantized tensors: a `Tensor` of them holds raw
# bytes.
STORED_AS_BYTES = frozenset(
    row.runtime
    for row in dtypes.ROWS
    if row.torch is None or row.name in ("QINT8", "QINT32", "QUINT8", "INT4")
)


@without_modes
def raw(tensor: torch.Tensor) -> bytes:
    """Return the little-endian bytes of a CPU tensor."""
    return as_bytes(tensor).numpy().tobytes()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the raw little-endian bytes of a CPU tensor as a 1-D uint8 tensor."""
    plain = tensor.int_repr() if tensor.is_quantized else tensor
    flat = plain.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


@without_modes
def from_raw(data: bytes, dtype: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor with these bytes.

    The result is the bytes themselves (1-D uint8) if torch cannot hold the type or the length does not fit.
    """
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if dtype in STORED_AS_BYTES:
        return flat
    wanted = dtypes.to_torch(dtype)
    if any(size < 0 for size in shape) or math.prod(shape) * wanted.itemsize != flat.numel():
        return flat
    return flat.view(wanted).reshape(shape)


PUBLIC = (
    Int, Float, Bool, Str, DataType, ListInt, ListFloat, ListBool, ListStr, ListDataType, ListListInt,
    ListListFloat,
)  # fmt: skip

# Prototype attribute type -> kind.
BY_PROTOTYPE: dict[str, type[Attr]] = {
    "Int": Int, "Float": Float, "Bool": Bool, "String": Str, "Type": DataType,
    "ListInt": ListInt, "ListFloat": ListFloat, "ListBool": ListBool, "ListString": ListStr,
    "ListType": ListDataType, "ListListInt": ListListInt, "ListListFloat": ListListFloat, "Tensor": Tensor,
}  # fmt: skip

# Attributes that an op may have although no prototype lists them. Any other name with a leading underscore is
# allowed, too.
KNOWN: dict[str, type[Attr]] = {
    "_input_name_key": ListStr, "_input_name_value": ListInt,
    "_output_name_key": ListStr, "_output_name_value": ListInt,
    "input_layout_info": Layouts, "output_layout_info": Layouts,
    "_force_unknown_shape": Bool, "_inputs_all_sym": Bool, "_inference_rule": Str, "_readable_value": Str,
    "_held_outside": Bool,
    "_origin_data_name": Str, "_kernel": Str, "_force_skip_prune": Bool, "_host_tensor": Bool,
    "_enable_storage_format_spread": Bool, "nn_module_stack": Str, "_parent_node_index": Int,
    "update_node_from_fx_input_idx": Int,
    # Set by scopes.
    "_user_stream_label": Str, "_user_stream_priority": Str, "_enable_inner_parallel": Bool,
    "_super_kernel_scope": Str,
    "_super_kernel_options": Str, "_op_aicore_num": Str, "_op_vectorcore_num": Str,
    "_op_exec_never_timeout": Bool,
    "torchair_enable_data_dump": Str, "_deterministic": Str, "_deterministic_level": Str,
    # Set on graphs and descriptors.
    "_input_placements": ListInt, "_output_dtypes": ListInt, "_executor_type": Int,
    "_meta": Str, "_fx_tensor_name": Str,
    "_is_unfed_optional": Int, "format_for_int": Int, "origin_format_for_int": Int, "origin_shape": ListInt,
    "origin_shape_initialized": Bool, "origin_format_is_set": Bool,
}  # fmt: skip

__all__ = [
    "Bool",
    "DataType",
    "Float",
    "Int",
    "ListBool",
    "ListDataType",
    "ListFloat",
    "ListInt",
    "ListListFloat",
    "ListListInt",
    "ListStr",
    "Str",
]
