"""Convert custom ops that write their arguments, as AOTAutograd wraps them: the op on copies of what it
writes.

A written part of a tensor is a window of the copy, and the op's result is put back into it. An output of the
IR op with the name of an input is the new value of that input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair import ge
from torchair.convert.aten.shape import bounds
from torchair.convert.base.auto_converters import why_not_automatic
from torchair.convert.base.inference_rule import attach_rules
from torchair.convert.base.operands import pack
from torchair.convert.base.registry import candidates, converter
from torchair.core.torch_private.operators.alias_schema import original_of
from torchair.core.torch_private.operators.schemas import OpOverload, arguments_of
from torchair.fxgraph.effects import written_names
from torchair.ge.graph import Tensor, current_graph
from torchair.ge.prototype import catalogue

aten = torch.ops.aten
higher_order = torch.ops.higher_order
WRAPPERS = (higher_order.auto_functionalized, higher_order.auto_functionalized_v2)


@dataclass(frozen=True)
class Window:
    """One tensor that the op writes: the index of its base, the op's argument, and its layout in the base.

    Without a layout it is the whole base.
    """

    base: int
    given: Tensor
    slice: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()

    @property
    def is_part(self) -> bool:
        """Return whether it is only a part of the base."""
        return bool(self.slice or self.strides)

    def put(self, base: Tensor, value: Tensor) -> Tensor:
        """Return the base with this content in the window."""
        if self.slice:
            return _convert(aten.slice_scatter.default, base, value, *self.slice)
        return _convert(aten.as_strided_scatter.default, base, value, *self.strides)


@dataclass
class WrittenArgument:
    """Hold what an op writes.

    These are the copies of the bases, the windows of them that the op gets, and the other arguments inside
    them.
    """

    copies: list[Tensor]
    windows: list[Window] = field(default_factory=list[Window])
    shared: Sequence[str] = ()

    def whole(self, value: Tensor) -> Tensor:
        """Return a copy unchanged."""
        self.copies.append(copied := ge.TensorMove(value))
        self.windows.append(Window(len(self.copies) - 1, copied))
        return copied

    def window(self, arguments: Mapping[str, Any], prefix: str) -> Tensor | None:
        """Return the part of a copy that the arguments with this prefix describe; None for a None
        argument.
        """
        index = arguments[f"{prefix}_base_index"]
        if index is None:
            return None
        base = self.copies[index]
        if arguments.get(f"{prefix}_slice_dim") is not None:
            where = tuple(arguments[f"{prefix}_slice_{key}"] for key in ("dim", "start", "end"))
            window = Window(index, _sliced(base, *where), slice=where)
        elif f"{prefix}_size" in arguments:
            where = tuple(arguments[f"{prefix}_{key}"] for key in ("size", "stride", "storage_offset"))
            window = Window(index, _convert(aten.as_strided.default, base, *where), strides=where)
        else:
            window = Window(index, base)
        self.windows.append(window)
        return window.given


def _sliced(x: Tensor, dim: int, start: Any, end: Any) -> Tensor:
    begin, stop = bounds(start, end)
    result: Tensor = ge.StridedSliceV2(x, pack([begin]), pack([stop]), [dim], [1])
    return result


def _convert(target: OpOverload, *args: Any) -> Tensor:
    """Apply the converter of an ATen op."""
    row = next(iter(candidates(target)))
    why_not = row.only(*args) if row.only else None
    if why_not is not None:
        raise NotImplementedError(f"it writes into a part of a tensor: {why_not}")
    result: Tensor = row.fn(*args)
    return result


@converter(WRAPPERS[0])
def auto_functionalized(_mutable_op, *, meta_outputs, **arguments):
    """Convert a custom op that writes some of its arguments, on copies of them."""
    op: OpOverload = _mutable_op
    written = WrittenArgument([])
    for name in written_names(op):
        if isinstance(arguments[name], list):
            raise NotImplementedError(f"its argument {name!r} is a list of tensors")
        if arguments[name] is not None:
            arguments[name] = written.whole(arguments[name])
    return _on_copies(op, arguments, written, meta_outputs)


@converter(WRAPPERS[1])
def auto_functionalized_v2(_mutable_op, *, _all_bases, meta_outputs, **arguments):
    """Convert as above; each written argument is one of the bases, a view of it, or a list of these."""
    op, shared = original_of(_mutable_op)
    written = WrittenArgument([ge.TensorMove(base) for base in _all_bases])
    given = {name: value for name, value in arguments.items() if not name.startswith("_")}
    for name in shared:
        given[name] = written.window(arguments, f"_{name}")
    written.windows, written.shared = [], shared
    for name in written_names(op):
        if f"_{name}_base_index" in arguments:
            given[name] = written.window(arguments, f"_{name}")
        else:
            length = arguments[f"_{name}_length"]
            listed = [written.window(arguments, f"_{name}_{i}") for i in range(length or 0)]
            given[name] = None if length is None else listed
    return _on_copies(op, given, written, meta_outputs)


def _on_copies(
    op: OpOverload, given: Mapping[str, Any], written: WrittenArgument, specs: Sequence[Any]
) -> list[Any]:
    """Apply the op's own converter to the copies; return its results, then the new values of the copies."""
    row = next(iter(candidates(op)), None)
    if row is None:
        raise NotImplementedError(f"{op} has no converter; {why_not_automatic(op)}")
    schema = op._schema
    values = arguments_of(schema, (), given)
    args = [values[arg.name] for arg in schema.arguments if not arg.kwarg_only]
    kwargs = {arg.name: values[arg.name] for arg in schema.arguments if arg.kwarg_only and arg.name in given}
    results = max(len(schema.returns), 1)
    kwargs_of_op = dict(kwargs)
    if row.wants_meta:
        kwargs["meta_outputs"] = specs[0] if results == 1 else list(specs[:results])
    mark = len(current_graph().ops)
    result = row.fn(*args, **kwargs)
    returned = list(result) if isinstance(result, list | tuple) else [result]
    attach_rules(op, args, kwargs_of_op, result, current_graph().ops[mark:])
    own = returned if schema.returns else [None]
    return [*own, *_new_values(op, written, mark)]


def _new_values(op: OpOverload, written: WrittenArgument, mark: int) -> list[Tensor]:
    """Return the bases after the op. If no kernel here runs the IR op, they have no values yet."""
    graph = current_graph()
    is_known = all(_has_value(result) for result in graph.ops[mark:])
    parts = [window.base for window in written.windows if window.is_part]
    if is_known and len(set(parts)) < len(parts):
        raise NotImplementedError("it writes two parts of one tensor, which may overlap")
    if is_known and written.shared:
        raise NotImplementedError(
            f"it also reads what it writes, as {written.shared[0]!r}, which kernels do not support"
        )
    last = len(graph.ops)
    bases = list(written.copies)
    for window in written.windows:
        value = _new_value(window.given, mark, last)
        if value is None and is_known:
            raise NotImplementedError(
                f"the IR op of {op} has no output with the name of an input that it writes"
            )
        if value is None:
            value = ge.Identity(window.given, dependencies=[graph.ops[last - 1]])
        if value.meta is None:
            value.meta = window.given.meta
        bases[window.base] = window.put(bases[window.base], value) if window.is_part else value
    for result in graph.ops[mark:] if not is_known else ():
        for output in result.outputs if result.type != "Const" else ():
            output.meta = None
    return bases


def _has_value(op: Any) -> bool:
    """Return whether the op has a value; a user's op that returns nothing is only known to write."""
    if not op.outputs:
        return catalogue().is_builtin(op.type)
    return all(output.meta is not None for output in op.outputs)


def _new_value(given: Tensor, mark: int, last: int) -> Tensor | None:
    """Return the output with the name of the input that received the tensor."""
    for result in reversed(current_graph().ops[mark:last]):
        names = {slot.name for slot in result.slots if slot.tensor is given}
        found = [output for output in result.outputs if output.desc.name in names]
        if found:
            return found[0]
    return None
