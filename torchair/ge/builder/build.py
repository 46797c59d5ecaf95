"""Build IR ops, and define the public calls `custom_op`, `Const`, `Cast` and `Clone`.

`ge.Acos(x)`, `ge.Cast(x, dst_type=0)`, `ge.Unpack(x, num=2, outputs=2)`: inputs in prototype order,
attributes by name, `outputs=` the number of tensors of a dynamic output. Python numbers, lists and torch
tensors become `Const` ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from torchair.core import dtypes
from torchair.core.errors import BadAttribute, BadConverter, BadInput, UnknownOp
from torchair.core.torch_private.fake.fake_tensors import without_modes
from torchair.fxgraph.value_keys import constant_key, number_key
from torchair.ge import attr as attrs_of
from torchair.ge.attr import Attr
from torchair.ge.graph import INPUT_TYPES, Desc, Graph, Op, Slot, Tensor, current_graph
from torchair.ge.prototype import AttrParam, Param, Prototype, catalogue, prototype
from torchair.ge.schema import formats, op_dtypes

_FLOATS = ("BF16", "FLOAT16", "FLOAT", "DOUBLE")
_INTS = ("INT8", "UINT8", "INT32", "UINT32", "INT64")
_INDEX_TYPES = {"INT16", "INT32", "INT64"}
# Endings for a parameter whose IR name is a Python keyword, or also the name of an input.
_IS_KEYWORD, _IS_INPUT_TOO = "_changed_as_is_python_key", "_changed_as_duplicate_with_input"
# Elements per byte of types smaller than a byte.
_PER_BYTE = {"INT4": 2, "FLOAT4_E2M1": 2, "FLOAT4_E1M2": 2, "INT2": 4, "UINT2": 4, "UINT1": 8}
_INT4, _FLOAT, _FLOAT16 = (dtypes.BY_NAME[name].runtime for name in ("INT4", "FLOAT", "FLOAT16"))
_LITERALS = (bool, int, float, list, tuple, torch.Tensor, np.ndarray, np.generic)


def build(
    op_type: str,
    *args: Any,
    outputs: int | Mapping[str, int] | None = None,
    dependencies: Sequence[Tensor | Op] = (),
    node_name: str | None = None,
    attrs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Add an op of the catalogue to the graph being built; return its outputs (one, a tuple, or lists)."""
    proto = prototype(op_type)
    named = {param.name: arg for param, arg in zip(proto.inputs, args, strict=False)}
    extra = args[len(proto.inputs) :]
    if len(extra) > len(proto.attrs):
        raise BadInput(
            f"{op_type} takes {len(proto.inputs)} inputs and {len(proto.attrs)} attributes", near=str(proto)
        )
    given = {row.name: value for row, value in zip(proto.attrs, extra, strict=False)} | dict(attrs or {})
    for spelled, value in kwargs.items():
        key = spelled.removesuffix(_IS_KEYWORD).removesuffix(_IS_INPUT_TOO)
        if not spelled.endswith(_IS_INPUT_TOO) and key in proto.input_names and key not in named:
            named[key] = value
        elif key in given:
            raise BadAttribute(f"{op_type} got attribute {key!r} twice")
        else:
            given[key] = value
    inputs = {param.name: _input(proto, param, named.get(param.name), named) for param in proto.inputs}
    values = {name: _attribute(proto, name, value) for name, value in given.items() if value is not None}
    for row in proto.attrs:
        if row.required and row.name not in values:
            raise BadAttribute(f"{op_type} needs the attribute {row.name!r} ({row.type})", near=str(proto))
    counts = [(param.name, _count(proto, param, outputs)) for param in proto.outputs]
    op, results = _make(op_type, inputs, values, counts, dependencies=dependencies, node_name=node_name)
    return _add_as_declared(op, results)


def _add_as_declared(op: Op, results: Any) -> Any:
    """Add an op, with casts around it if it does not accept the types of its inputs."""
    graph = current_graph()
    casts = {} if graph.infer is None else op_dtypes.casts(op)
    if not casts or graph.infer is None:
        formats.mark(graph.add(op))
        return results
    graph.infer(op)
    asked = [output.dtype for output in op.outputs]
    for number, dtype in casts.items():
        slot = op.slots[number]
        slot.tensor = Cast(slot.tensor, dst_type=dtype)
    formats.mark(graph.add(op))

    def restored(result: Any) -> Any:
        if isinstance(result, Tensor):
            wanted = asked[result.index]
            return result if result.dtype == wanted else Cast(result, dst_type=wanted)
        return type(result)(map(restored, result)) if isinstance(result, list | tuple) else result

    return restored(results)


def add_op(
    op_type: str,
    inputs: Mapping[str, Tensor | Sequence[Tensor] | None],
    attrs: Mapping[str, Attr],
    outputs: Sequence[tuple[str, int | None]],
    *,
    dependencies: Sequence[Tensor | Op] = (),
    node_name: str | None = None,
    objects: Mapping[str, Any] | None = None,
    subgraphs: Sequence[str] = (),
) -> Any:
    """Append an op whose parts are already checked; return its outputs: a tensor, a tuple, or lists.

    An output count of None is a single output. A dependency is a tensor or, if an op has none, the op: the
    new op runs after it.
    """
    op, results = _make(
        op_type, inputs, attrs, outputs, dependencies=dependencies, node_name=node_name, objects=objects,
        subgraphs=subgraphs,
    )  # fmt: skip
    current_graph().add(op)
    return results


def _make(
    op_type: str,
    inputs: Mapping[str, Tensor | Sequence[Tensor] | None],
    attrs: Mapping[str, Attr],
    outputs: Sequence[tuple[str, int | None]],
    *,
    dependencies: Sequence[Tensor | Op] = (),
    node_name: str | None = None,
    objects: Mapping[str, Any] | None = None,
    subgraphs: Sequence[str] = (),
) -> tuple[Op, Any]:
    """Create an op that is not in any graph yet, and the value that its builder returns."""
    op = Op(_name(current_graph(), op_type, node_name), op_type)
    for name, value in inputs.items():
        if isinstance(value, Tensor) or value is None:
            op.slots.append(_slot(name, value, is_input=op_type in INPUT_TYPES))
        else:
            op.slots.extend(_slot(f"{name}{i}", tensor) for i, tensor in enumerate(value))
    op.attrs.update(attrs)
    op.objects.update(objects or {})
    op.subgraphs.extend(subgraphs)
    op.after.extend(before if isinstance(before, Op) else before.op for before in dependencies)
    results: list[Any] = []
    for name, count in outputs:
        made = [
            Tensor(op, len(op.outputs) + i, name if count is None else f"{name}{i}")
            for i in range(1 if count is None else count)
        ]
        op.outputs.extend(made)
        results.append(made[0] if count is None else made)
    return op, (results[0] if len(results) == 1 else tuple(results)) if results else None


def _name(graph: Graph, op_type: str, node_name: str | None) -> str:
    if node_name is None:
        return graph.new_name(op_type)
    if not node_name.strip():
        raise BadConverter("a node name must not be blank", got=repr(node_name))
    if node_name in graph.by_name:
        raise BadConverter(
            f"the node name {node_name!r} is already used in {graph.name}",
            next="choose another node_name, or omit it",
        )
    return node_name


def _slot(name: str, tensor: Tensor | None, is_input: bool = False) -> Slot:
    if tensor is None and not is_input:
        return Slot(Desc(name, attrs={"_is_unfed_optional": attrs_of.Int(1)}), None)
    return Slot(Desc(name), tensor)


def _input(
    proto: Prototype, param: Param, value: Any, named: Mapping[str, Any]
) -> Tensor | list[Tensor] | None:
    if param.kind == "dynamic":
        if not isinstance(value, list | tuple):
            raise BadInput(
                f"{proto.name}: input {param.name!r} must be a list of tensors",
                got=repr(value),
                near=str(proto),
            )
        return [_tensor(proto, param, item, named) for item in value]
    if value is None:
        if param.kind == "required" and proto.name not in ("Data", "RefData"):
            raise BadInput(f"{proto.name}: input {param.name!r} is missing", near=str(proto))
        return None
    return _tensor(proto, param, value, named)


def _tensor(proto: Prototype, param: Param, value: Any, named: Mapping[str, Any]) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, _LITERALS):
        raise BadInput(
            f"{proto.name}: input {param.name!r} cannot be converted to a tensor",
            got=f"{value!r} ({type(value).__name__})",
        )
    return Const(value, dtype=_literal_dtype(proto, param, value, named))


def _literal_dtype(proto: Prototype, param: Param, value: Any, named: Mapping[str, Any]) -> int | None:
    """Return the dtype that a literal operand takes from the other operands (None: its own)."""
    first = value
    while isinstance(first, list | tuple):
        first = first[0] if first else 0
    if isinstance(first, bool) or not isinstance(first, int | float):
        return None
    if param.dtypes and set(param.dtypes) <= _INDEX_TYPES:
        return dtypes.BY_NAME["INT64" if "INT64" in param.dtypes else "INT32"].runtime
    pool = _FLOATS if isinstance(first, float) else _INTS
    others: list[Any] = []
    for other in named.values():
        others.extend(other if isinstance(other, list | tuple) else [other])
    found = {dtypes.BY_RUNTIME[t.dtype].name for t in others if isinstance(t, Tensor)} & set(pool)
    if len(found) > 1:
        raise BadConverter(
            f"{proto.name}: the dtype of the literal {value!r} is ambiguous: it could be any of "
            f"{sorted(found)}",
            next="make it a tensor with ge.Const(value, dtype=...)",
        )
    return dtypes.BY_NAME[found.pop()].runtime if found else None


def _attribute(proto: Prototype, name: str, value: Any) -> Attr:
    row = proto.attr_by_name.get(name)
    if row is None:
        known = attrs_of.KNOWN.get(name)
        if isinstance(value, known or Attr) and (known is not None or name.startswith("_")):
            return value
        have = ", ".join(proto.attr_by_name) or "none"
        raise BadAttribute(f"{proto.name} has no attribute {name!r}; it has {have}", near=str(proto))
    return make_attr(proto.name, row, value)


def make_attr(op_type: str, row: AttrParam, value: Any) -> Attr:
    """Convert a Python value to the attribute kind that the prototype requires."""
    kind = attrs_of.BY_PROTOTYPE.get(row.type)
    if kind is None:
        raise BadAttribute(
            f"{op_type}: attributes of type {row.type} ({row.name!r}) cannot be built from Python"
        )
    if isinstance(value, torch.dtype):
        value = dtypes.to_ge(value)
    if row.type == "ListType" and isinstance(value, list | tuple):
        value = [dtypes.to_ge(item) if isinstance(item, torch.dtype) else item for item in value]
    if isinstance(value, Attr) and type(value) is not kind:
        raise BadAttribute(f"{op_type}: attribute {row.name!r} must be of type {row.type}", got=repr(value))
    if not isinstance(value, Attr) and not _fits(row.type, value):
        raise BadAttribute(
            f"{op_type}: attribute {row.name!r} must be of type {row.type}",
            got=f"{value!r} ({type(value).__name__})",
        )
    return kind(value)


_SCALARS: dict[str, tuple[type, ...]] = {
    "Int": (int, np.integer), "Float": (int, float, np.floating), "Bool": (bool, int), "String": (str,),
    "Type": (int,), "Tensor": (torch.Tensor,),
}  # fmt: skip


def _fits(kind: str, value: Any) -> bool:
    if kind in _SCALARS:
        return isinstance(value, _SCALARS[kind])
    item = kind.removeprefix("List")
    return isinstance(value, list | tuple | torch.Size) and all(_fits(item, element) for element in value)


def _count(proto: Prototype, param: Param, outputs: int | Mapping[str, int] | None) -> int | None:
    if param.kind != "dynamic":
        return None
    if isinstance(outputs, Mapping):
        outputs = outputs.get(param.name)
    if outputs is None:
        raise BadInput(
            f"{proto.name}: the number of tensors of output {param.name!r} is not known",
            next="pass outputs=<number>, or use the keyword form of custom_op",
        )
    return outputs


def Const(v: Any, dtype: int | None = None, node_name: str | None = None, readable: bool = True) -> Tensor:
    """Add a constant to the graph being built.

    Args:
        v: Value: a number, a list, an array or a torch tensor.
        dtype: GE data type. By default, Python floats are FLOAT, ints are INT64, lists follow NumPy, and
            an empty list is INT32.
        node_name: Name of the op; a free name is chosen if it is None.
        readable: Write small values into text forms of the graph as they are.

    Returns:
        The tensor of the constant.

    Raises:
        BadAttribute: `v` is already a tensor of the graph.

    Example:
        ge.Add(x, ge.Const([1.0, 2.0], dtype=ge.DataType.DT_FLOAT16))
    """
    if isinstance(v, Tensor):
        raise BadAttribute("Const expects a value, got a tensor of the graph", got=repr(v))
    stored = const_attr(v, dtype)
    value = stored.value
    graph = current_graph()
    shared = node_name is None and readable and value.numel() <= SHARED_LIMIT and not graph.scopes
    key = const_key(v, stored) if shared else None
    if shared and key in graph.constants:
        return graph.constants[key]
    attrs: dict[str, Attr] = {"value": stored}
    if readable:
        attrs["_readable_value"] = attrs_of.Str(repr(v))
    made: Tensor = add_op("Const", {}, attrs, [("", None)], node_name=node_name)
    made.desc = Desc("", stored.dtype, stored.shape, "ND")
    if shared:
        graph.constants[key] = made
    return made


# Equal constants of up to this many elements are one op.
SHARED_LIMIT = 64


def const_key(v: Any, stored: attrs_of.Tensor) -> Hashable:
    """Return the key by which equal constants are recognized: the stored value, and all digits of a
    number.
    """
    exact = number_key(v) if isinstance(v, float) else stored.exact
    return constant_key(stored.value), stored.dtype, stored.shape, exact


def const_attr(v: Any, dtype: int | None = None) -> attrs_of.Tensor:
    """Return the attribute of a Const of `v`. For types whose values torch cannot hold, `v` is the bytes."""
    if dtype not in attrs_of.STORED_AS_BYTES:
        plain = const_value(v, dtype)
        return cast(attrs_of.Tensor, attrs_of.Tensor(plain, None, _exact(v, plain)))
    value = const_value(v, dtypes.BY_NAME["UINT8"].runtime)
    shape = list(value.shape)
    if shape:
        shape[-1] *= _PER_BYTE.get(dtypes.BY_RUNTIME[dtype].name, 1)
    return cast(attrs_of.Tensor, attrs_of.Tensor(value, attrs_of.Form(dtype, tuple(shape))))


@without_modes
def _exact(v: Any, stored: torch.Tensor) -> float | None:
    """Return a Python number that the 32 bits of a FLOAT do not hold, or None."""
    if stored.dtype != torch.float32 or not isinstance(v, int | float) or math.isnan(v):
        return None
    return None if stored.item() == v else float(v)


@without_modes
def const_value(v: Any, dtype: int | None = None) -> torch.Tensor:
    """Return the CPU tensor of a Const of `v`: a real one, even while a graph is being traced."""
    wanted = None if dtype is None else dtypes.to_torch(dtype)
    if isinstance(v, torch.Tensor):
        plain = v.detach().cpu().contiguous()
        return plain if wanted is None else plain.to(wanted)
    if wanted is None and isinstance(v, float):
        wanted = torch.float32
    if wanted is None and isinstance(v, list | tuple) and not v:
        wanted = torch.int32
    if wanted is None or isinstance(v, np.ndarray | np.generic):
        made = torch.from_numpy(np.ascontiguousarray(v)).reshape(np.shape(v))
        return made if wanted is None else made.to(wanted)
    return torch.tensor(v, dtype=wanted)


def Cast(
    x: Any,
    *,
    dst_type: int,
    dependencies: Sequence[Tensor | Op] = (),
    node_name: str | None = None,
    attrs: Mapping[str, Attr] | None = None,
) -> Tensor:
    """Convert `x` to another data type.

    Args:
        x: Tensor or value to convert.
        dst_type: GE data type of the result, such as `ge.DataType.DT_FLOAT16`.
        dependencies: Tensors or ops after which the op runs.
        node_name: Name of the op; a free name is chosen if it is None.
        attrs: Further attributes by name.

    Returns:
        The converted tensor.
    """
    rest: dict[str, Any] = {"dependencies": dependencies, "node_name": node_name, "attrs": attrs}
    # The IR's own Cast does not support INT4; dequantize and quantize with a scale of 1 do the same.
    if isinstance(x, Tensor) and x.dtype == _INT4:
        x = build("AscendAntiQuantV2", x, Const([1.0], dtype=_FLOAT), dst_type=_FLOAT16)
    if dst_type == _INT4:
        x = x if isinstance(x, Tensor) else Const(x)
        return cast(Tensor, build("AscendQuantV2", x, Const([1.0], dtype=x.dtype), dst_type=_INT4, **rest))
    return cast(Tensor, build("Cast", x, dst_type=dst_type, **rest))


def _graph_input(
    op_type: str,
    index: int = 0,
    dtype: int = dtypes.UNDEFINED,
    shape: Sequence[int] | None = None,
    placement: str = "NPU",
    format: str = "ND",
    *,
    dependencies: Sequence[Tensor | Op] = (),
    node_name: str | None = None,
    attrs: Mapping[str, Attr] | None = None,
) -> Tensor:
    """Add a graph input: `ge.Data(index=0, dtype=0, shape=[2, -1], placement="CPU")`.

    Without a shape its rank is unknown.
    """
    made: Tensor = build(op_type, index=index, dependencies=dependencies, node_name=node_name, attrs=attrs)
    made.desc = Desc("y", dtype, (-2,) if shape is None else tuple(shape), format, placement)
    return made


def Clone(x: Tensor, *, dependencies: Sequence[Tensor] = (), node_name: str | None = None) -> Tensor:
    """Copy `x` with a TensorMove op.

    Args:
        x: Tensor of the graph.
        dependencies: Tensors after which the op runs.
        node_name: Name of the op; a free name is chosen if it is None.

    Returns:
        The copy.

    Raises:
        BadConverter: `x` is not a tensor of the graph.
    """
    for value in (x, *dependencies):
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
            raise BadConverter("Clone expects tensors of the graph", got=repr(value))
    made: Tensor = build("TensorMove", x, dependencies=dependencies, node_name=node_name)
    return made


def custom_op(
    op_type: str,
    *args: Any,
    inputs: dict[str, Any] | None = None,
    outputs: list[str | tuple[str, int]] | None = None,
    attrs: dict[str, Attr] | None = None,
    node_name: str | None = None,
) -> Any:
    """Add any IR op to the graph being built.

    Pass the inputs and then the attributes of a registered prototype by position, or describe the op fully by
    keyword. While a model is converted, an op that is described by keyword need not be registered.

    Args:
        op_type: Type of the op.
        args: Inputs and attributes in prototype order.
        inputs: A tensor, a list of tensors or None for each input name.
        outputs: Name, or name and count, of each output.
        attrs: Attributes by name, made with `torchair.ge.attr`.
        node_name: Name of the op; a free name is chosen if it is None.

    Returns:
        The outputs of the op: one tensor, a tuple, or lists.

    Raises:
        BadInput: An input is missing or cannot be converted to a tensor.
        BadAttribute: An attribute is missing or has the wrong type.
        BadConverter: The description has the wrong form.

    Example:
        y = ge.custom_op("MyOp", inputs={"x": x}, outputs=["y"], attrs={"alpha": ge.attr.Float(0.5)})
    """
    if not args and op_type not in catalogue() and current_graph().infer is not None:
        return _custom_described(op_type, inputs, outputs, attrs, node_name)
    proto = prototype(op_type)
    if args:
        return _custom_by_prototype(proto, args, node_name)
    return _custom_described(op_type, inputs, outputs, attrs, node_name, proto)


def _custom_by_prototype(proto: Prototype, args: Sequence[Any], node_name: str | None) -> Any:
    op_type = proto.name
    if len(args) != len(proto.inputs) + len(proto.attrs):
        raise IndexError(
            f"{op_type} takes {len(proto.inputs)} inputs and {len(proto.attrs)} attributes, {len(args)} "
            f"values were given; its prototype is {proto}"
        )
    inputs: dict[str, Any] = {}
    for param, value in zip(proto.inputs, args, strict=False):
        _check_custom_input(proto, param, value)
        inputs[param.name] = value
    values: dict[str, Attr] = {}
    for row, value in zip(proto.attrs, args[len(proto.inputs) :], strict=True):
        if row.type not in attrs_of.BY_PROTOTYPE:
            raise BadAttribute(f"{op_type}: attribute {row.name!r} has the unknown type {row.type}")
        if value is not None:
            values[row.name] = make_attr(op_type, row, value)
    counts = [(param.name, _count(proto, param, None)) for param in proto.outputs]
    return add_op(op_type, inputs, values, counts, node_name=node_name)


def _check_custom_input(proto: Prototype, param: Param, value: Any) -> None:
    wants = {"required": (Tensor,), "optional": (Tensor, type(None)), "dynamic": (list, tuple)}
    forms = {"required": "a tensor", "optional": "a tensor or None", "dynamic": "a list of tensors"}
    items = value if isinstance(value, list | tuple) else ()
    if not isinstance(value, wants[param.kind]) or not all(isinstance(item, Tensor) for item in items):
        raise BadInput(
            f"{proto.name}: input {param.name!r} must be {forms[param.kind]}",
            got=repr(value),
            near=str(proto),
        )


def _custom_described(
    op_type: str,
    inputs: dict[str, Any] | None,
    outputs: list[str | tuple[str, int]] | None,
    attrs: dict[str, Attr] | None,
    node_name: str | None,
    proto: Prototype | None = None,
) -> Any:
    if not isinstance(inputs, dict | None):
        raise BadConverter(f"{op_type}: inputs must be a dict of name to tensor", got=repr(inputs))
    for name, value in (inputs or {}).items():
        items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        is_list = isinstance(value, list | tuple)
        if not all(isinstance(item, Tensor) or (item is None and not is_list) for item in items):
            raise BadConverter(
                f"{op_type}: input {name!r} must be a tensor, None or a list of tensors", got=repr(value)
            )
    for name, value in (attrs or {}).items():
        if not isinstance(value, attrs_of.PUBLIC):
            kinds = ", ".join(sorted(kind.__name__ for kind in attrs_of.PUBLIC))
            raise BadConverter(
                f"{op_type}: attribute {name!r} must be made with torchair.ge.attr",
                got=repr(value),
                near=kinds,
            )
    if not isinstance(outputs, list | tuple | None):
        raise BadConverter(f"{op_type}: outputs must be a list of names", got=repr(outputs))
    counts: list[tuple[str, int | None]] = []
    for entry in outputs or ():
        is_pair = isinstance(entry, tuple) and [type(part) for part in entry] == [str, int]
        if not isinstance(entry, str) and not is_pair:
            raise BadConverter(f"{op_type}: an output must be a name or (name, count)", got=repr(entry))
        counts.append((entry, None) if isinstance(entry, str) else entry)
    if proto is not None:
        _check_names("input", inputs or (), [param.name for param in proto.inputs], proto)
        _check_names("attribute", attrs or (), [row.name for row in proto.attrs], proto)
        _check_names("output", [name for name, _ in counts], [param.name for param in proto.outputs], proto)
    return add_op(op_type, inputs or {}, attrs or {}, counts, node_name=node_name)


def _check_names(kind: str, given: Iterable[str], known: Sequence[str], proto: Prototype) -> None:
    """Check the names of a described op against its prototype.

    Other engines may use private names with a leading underscore.
    """
    unknown = [name for name in given if name not in known and not name.startswith("_")]
    if unknown:
        raise BadConverter(
            f"{proto.name} has no {kind} {unknown[0]!r}", got=", ".join(map(repr, given)), near=str(proto)
        )


@functools.cache
def builder(op_type: str) -> Callable[..., Any]:
    """Return the builder function of an op, as `ge.<Op>` does.

    Args:
        op_type: Type of an op in the catalogue.

    Returns:
        A function that adds the op to the graph: it takes inputs in prototype order, attributes by name.
    """
    proto = prototype(op_type)
    made = functools.partial(_graph_input if op_type in INPUT_TYPES else build, op_type)
    made.__doc__ = str(proto)  # type: ignore[misc]
    return made


def is_op(name: str) -> bool:
    """Return whether this is the name of an op of the catalogue."""
    return name in catalogue()


__all__ = [
    "Cast",
    "Clone",
    "Const",
    "UnknownOp",
    "add_op",
    "build",
    "builder",
    "const_value",
    "custom_op",
    "is_op",
]
