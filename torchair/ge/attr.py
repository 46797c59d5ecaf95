"""Attributes of IR ops: the twelve public kinds, and the few that only graphs themselves carry.

`Int(3)` is an object with `.value`; equal by kind and value; `repr` is how users write it: `ge.attr.Int(3)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from torchair.core.errors import BadConverter


class Attr:
    """One attribute value. `field` is its member of the wire message, `val_type` the list tag there."""

    field: ClassVar[str]
    tag: ClassVar[str] = ""
    val_type: ClassVar[int] = 0
    __slots__ = ("value",)

    def __new__(cls, value: Any) -> Attr:
        if isinstance(value, cls):
            return value
        return super().__new__(cls)

    def __init__(self, value: Any) -> None:
        if value is self:
            return
        if value is None or isinstance(value, Attr):
            raise BadConverter(
                f"ge.attr.{type(self).__name__} cannot hold {value!r}",
                next="leave the attribute out, or use the builder of the right kind",
            )
        self.value = self._clean(value)

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
        """Write this value into a wire `AttrDef`."""
        if self.field.startswith("list."):
            member = self.field.removeprefix("list.")
            proto_attr.list.val_type = self.val_type
            getattr(proto_attr.list, member).extend(self._to_wire(item) for item in self.value)
            return
        setattr(proto_attr, self.field, self._to_wire(self.value))

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        """The Python value stored in a wire `AttrDef`, or None when it holds another kind."""
        which = proto_attr.WhichOneof("value")
        if not cls.field.startswith("list."):
            return cls._from_wire(getattr(proto_attr, cls.field)) if which == cls.field else None
        if which != "list":
            return None
        member, stored = cls.field.removeprefix("list."), proto_attr.list
        if stored.val_type not in (0, cls.val_type) or any(
            len(getattr(stored, other)) for other in _LIST_MEMBERS if other != member
        ):
            return None
        return [cls._from_wire(item) for item in getattr(stored, member)]

    @staticmethod
    def _to_wire(item: Any) -> Any:
        return item

    @staticmethod
    def _from_wire(item: Any) -> Any:
        return item


_LIST_MEMBERS = ("s", "i", "f", "b", "bt", "td", "t", "g", "na", "dt")


def _kind(
    name: str, tag: str, field: str, clean: Callable[[Any], Any], val_type: int = 0, text: bool = False
) -> type[Attr]:
    """One row: a kind of attribute."""
    body: dict[str, Any] = {
        "__slots__": (),
        "__doc__": f"`{name}(value)`: an attribute of kind {tag}.",
        "field": field,
        "tag": tag,
        "val_type": val_type,
        "_clean": staticmethod(clean),
    }
    if text:
        body["_to_wire"] = staticmethod(lambda item: item.encode())
        body["_from_wire"] = staticmethod(lambda item: item.decode())
    return type(name, (Attr,), body)


def _list_of(clean: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [clean(value) for value in values]



Int = _kind("Int", "VT_INT", "i", int)
Float = _kind("Float", "VT_FLOAT", "f", float)
Bool = _kind("Bool", "VT_BOOL", "b", bool)
Str = _kind("Str", "VT_STRING", "s", str, text=True)
DataType = _kind("DataType", "VT_DATA_TYPE", "dt", int)
ListInt = _kind("ListInt", "VT_LIST_INT", "list.i", _list_of(int), 2)
ListFloat = _kind("ListFloat", "VT_LIST_FLOAT", "list.f", _list_of(float), 3)
ListBool = _kind("ListBool", "VT_LIST_BOOL", "list.b", _list_of(bool), 4)
# Written with the tag VT_LIST_NONE; readers accept VT_LIST_STRING too.
ListStr = _kind("ListStr", "VT_LIST_STRING", "list.s", _list_of(str), 0, text=True)
ListDataType = _kind("ListDataType", "VT_LIST_DATA_TYPE", "list.dt", _list_of(int), 10)


class ListListInt(Attr):
    """`ListListInt([[1, 2], []])`: a list of lists of ints."""

    field = "list_list_int"
    tag = "VT_LIST_LIST_INT"
    __slots__ = ()

    @staticmethod
    def _clean(value: Any) -> list[list[int]]:
        return [[int(item) for item in row] for row in value]

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.list_list_int.SetInParent()
        for row in self.value:
            proto_attr.list_list_int.list_list_i.add().list_i.extend(row)

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        if proto_attr.WhichOneof("value") != cls.field:
            return None
        return [list(row.list_i) for row in proto_attr.list_list_int.list_list_i]


class ListListFloat(Attr):
    """`ListListFloat([[1.0], [2.0]])`: a list of lists of floats."""

    field = "list_list_float"
    tag = "VT_LIST_LIST_FLOAT"
    __slots__ = ()

    @staticmethod
    def _clean(value: Any) -> list[list[float]]:
        return [[float(item) for item in row] for row in value]

    def merge_to(self, proto_attr: Any) -> None:
        proto_attr.list_list_float.SetInParent()
        for row in self.value:
            proto_attr.list_list_float.list_list_f.add().list_f.extend(row)

    @classmethod
    def get(cls, proto_attr: Any) -> Any:
        if proto_attr.WhichOneof("value") != cls.field:
            return None
        return [list(row.list_f) for row in proto_attr.list_list_float.list_list_f]


class Tensor(Attr):
    """The value of a `Const`: a torch tensor on the CPU. Not for users' ops."""

    field = "t"
    tag = "VT_TENSOR"
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not Tensor:
            return False
        a, b = self.value, other.value
        same_form = a.dtype == b.dtype and a.shape == b.shape
        return same_form and (a is b or torch.equal(as_bytes(a), as_bytes(b)))

    __hash__ = Attr.__hash__


class Layouts(Attr):
    """Parallel lists (descriptor index, layout text) in one wire list: `input_layout_info` and its twin."""

    field = "list"
    tag = "VT_LAYOUTS"
    __slots__ = ()


class Raw(Attr):
    """A serialised wire attribute of a kind we only pass on (sub-graphs, descriptors, named attributes)."""

    field = "raw"
    tag = "VT_RAW"
    __slots__ = ()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The raw little-endian bytes of a CPU tensor as a 1-D uint8 tensor."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


PUBLIC = (
    Int, Float, Bool, Str, DataType, ListInt, ListFloat, ListBool, ListStr, ListDataType, ListListInt, ListListFloat,
)  # fmt: skip

# Prototype attribute type -> kind.
BY_PROTOTYPE: dict[str, type[Attr]] = {
    "Int": Int, "Float": Float, "Bool": Bool, "String": Str, "Type": DataType,
    "ListInt": ListInt, "ListFloat": ListFloat, "ListBool": ListBool, "ListString": ListStr,
    "ListType": ListDataType, "ListListInt": ListListInt, "ListListFloat": ListListFloat, "Tensor": Tensor,
}  # fmt: skip

__all__ = [kind.__name__ for kind in PUBLIC]
