"""Evaluate one IR op. Values are torch tensors (real, fake or traced) or `Host` numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from torchair.core.dtypes import SMALL
from torchair.core.errors import UnsupportedOp
from torchair.core.kernel_params import ParamKind
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.engine.kernels.printing import run_text
from torchair.engine.registry import Kernel, as_host, find_host_kernel, find_kernel, param_kinds_of
from torchair.fxgraph.layout import layout_of, materialize_layout
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.builder.torch_kernel_binding import CALL, call_of, inputs_of, spread
from torchair.ge.builder.torch_op import torch_call
from torchair.ge.graph import INPUT_TYPES, Op, Tensor
from torchair.ge.host import Host, host_dtype
from torchair.ge.schema.string_format import FORMAT, PRINT
from torchair.ops.numerics.formats import unpack

Value = torch.Tensor | Host

# A constant vector of sizes is a host value up to this length; longer ones are data.
HOST_LIMIT = 64
_NUMBERS = (ParamKind.INTS, ParamKind.INT, ParamKind.NUMBER, ParamKind.HOST)
_HOST_VECTOR_DTYPES = (torch.int64, torch.int32)


def evaluate(op: Op, values: Mapping[Tensor, Value], device: torch.device) -> list[Value]:
    """Return the outputs of one op, given the values of its input tensors."""
    if op.type == "Const":
        return [constant(op, device)]
    if op.type == "TorchOp":
        target, args, kwargs = torch_call(
            op, [_with_fx_strides(tensor, values[tensor]) for tensor in op.inputs], device
        )
        return flat_values(target(*args, **kwargs))
    if CALL in op.attrs:
        return _run_by_torch(op, values, device)
    if op.type in (FORMAT, PRINT):
        return list(run_text(op, [values[tensor] for tensor in inputs_of(op)], device))
    values = {**values, **listed} if (listed := listed_constants(op)) else values
    arguments = [_lookup(argument, values) for argument in op.arguments().values()]
    results = call(op, arguments, device)
    if not any(_is_read(tensor) for tensor in op.outputs):
        return results
    pairs = zip(results, op.outputs, strict=True)
    return [as_host(value) if _is_read(tensor) else value for value, tensor in pairs]


def _run_by_torch(op: Op, values: Mapping[Tensor, Value], device: torch.device) -> list[Value]:
    """Evaluate an op without a kernel by the call of its FX node."""
    given = [_with_fx_strides(tensor, values[tensor]) for tensor in inputs_of(op)]
    call = call_of(op, given, device)
    if call is None:
        return spread(op, given)
    target, args, kwargs = call
    return spread(op, flat_values(target(*args, **kwargs)))


def evaluate_now(op: Op, values: Mapping[Tensor, Value], device: torch.device) -> list[Value]:
    """Evaluate on real tensors while a graph is traced or compiled."""
    with disable_modes(), torch.no_grad():
        return evaluate(op, values, device)


def _is_read(tensor: Tensor) -> bool:
    """Return whether the tensor is a number that FX reads from data.

    It is read once here, so that all readers compute with the same symbol.
    """
    return isinstance(tensor.meta, Host) and is_symbol(tensor.meta.value)


def call(op: Op, arguments: Sequence[Any], device: torch.device) -> list[Value]:
    """Evaluate with the argument values grouped by prototype input."""
    attrs = op.attributes()
    host_fn = find_host_kernel(op.type)
    if host_fn is not None and _all_host(arguments):
        result = host_fn(*arguments, **attrs)
        if result is not None:
            return list(result) if isinstance(result, list | tuple) else [result]
    if op.type == "Shape":
        return [Host(tuple(arguments[0].shape), torch.int64 if attrs["dtype"] == 9 else torch.int32)]
    row = find_kernel(op, device.type, arguments, attrs)
    chosen = {name: attrs[name] for name in row.attrs}
    _check_attributes(op, row)
    if row.wants_device:
        chosen["device"] = device_of(op, device)
    if row.wants_types:
        chosen["types"] = types_of(op)
    passed = [_pass(value, how, device) for value, how in zip(arguments, row.takes, strict=True)]
    if ParamKind.OPERAND in row.takes:
        passed = _operands(passed, row.takes, device)
    return flat_values(row.fn(*passed, **chosen))


def types_of(op: Op) -> dict[str, int]:
    """Return the GE data types of inputs, by slot name."""
    return {slot.name: slot.tensor.dtype for slot in op.slots if slot.tensor is not None}


def constant(op: Op, device: torch.device) -> Value:
    """Return a constant: scalars and short vectors of sizes as host values, all others as data on the
    device.
    """
    stored = op.attrs["value"]
    assert isinstance(stored, TensorAttr), "a Const holds a tensor"
    value: torch.Tensor = stored.value
    with disable_modes():
        if stored.dtype in SMALL:
            values = unpack(value.flatten(), stored.dtype)[: prod(stored.shape)]
            return values.reshape(stored.shape).to(device)
        if value.ndim == 0 and not value.is_quantized:
            return Host(value.item() if stored.exact is None else stored.exact, value.dtype)
        return Host(tuple(value.tolist()), value.dtype) if _is_sizes(value) else value.to(device)


def _is_sizes(value: torch.Tensor) -> bool:
    return value.ndim == 1 and value.dtype in _HOST_VECTOR_DTYPES and value.numel() <= HOST_LIMIT


def listed_constants(op: Op) -> dict[Tensor, Host]:
    """Return the constants that an op accepts as plain numbers, in order, although they are data elsewhere.

    Examples are pads of the shape [rank, 2] and a mode of one byte. The results of the op are then known at
    compile time.
    """
    takes = param_kinds_of(op.type)
    if not any(how in _NUMBERS for how in takes):
        return {}
    listed: dict[Tensor, Host] = {}
    for how, tensor in zip(takes, op.arguments().values(), strict=True):
        if how not in _NUMBERS or not isinstance(tensor, Tensor) or tensor.op.type != "Const":
            continue
        stored = tensor.op.attrs["value"].value
        if stored.ndim and not _is_sizes(stored):
            with disable_modes():
                listed[tensor] = Host(tuple(stored.flatten().tolist()), stored.dtype)
    return listed


def device_of(op: Op, default: torch.device) -> torch.device:
    """Return the device of the result of an op without inputs: FX's, else the graph's device."""
    meta = op.outputs[0].meta if op.outputs else None
    return meta.device if isinstance(meta, torch.Tensor) else default


def flat_values(result: Any) -> list[Value]:
    """Flatten a kernel's result: nested lists are dynamic outputs, numbers become host values."""
    if isinstance(result, list | tuple):
        return [value for item in result for value in flat_values(item)]
    if result is None:
        return []
    if isinstance(result, torch.Tensor | Host):
        return [result]
    return [Host(result, host_dtype(result))]


def _with_fx_strides(tensor: Tensor, value: Value) -> Value:
    """Give an argument of an ATen call the strides that FX expects.

    The call may depend on strides (`as_strided`, custom kernels). An argument of the graph has the strides of
    the call.
    """
    if isinstance(value, Host) or not isinstance(tensor.meta, torch.Tensor) or tensor.op.type in INPUT_TYPES:
        return value
    if tensor.meta.layout is not torch.strided or len(tensor.meta.shape) != value.ndim:
        return value
    # A tensor that was transposed in place has other sizes than at its creation.
    pairs = zip(value.shape, tensor.meta.shape, strict=True)
    if any(have != want for have, want in pairs if not is_symbol(have) and not is_symbol(want)):
        return value
    layout = layout_of(tensor.meta)
    # Symbols here are not those of an enclosing tracer.
    symbolic = any(map(is_symbol, layout.numbers))
    return materialize_layout([value], [replace(layout, is_example=symbolic)])[0]


def _lookup(argument: Any, values: Mapping[Tensor, Value]) -> Any:
    if isinstance(argument, list):
        return [values[tensor] for tensor in argument]
    return None if argument is None else values[argument]


def _all_host(arguments: Sequence[Any]) -> bool:
    flat = [item for value in arguments for item in (value if isinstance(value, list) else [value])]
    return bool(flat) and all(isinstance(item, Host) or item is None for item in flat)


def _pass(value: Any, how: ParamKind, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_pass(item, how, device) for item in value]
    if value is None:
        return None
    if how in (ParamKind.OPERAND, ParamKind.VALUE):
        return value
    if how is ParamKind.TENSOR:
        return value.to_tensor(device) if isinstance(value, Host) else value
    numbers = as_host(value)
    if how is ParamKind.HOST:
        return numbers
    if how is ParamKind.INTS:
        return list(numbers.items)
    return numbers.items[0]


def _operands(passed: list[Any], takes: Sequence[ParamKind], device: torch.device) -> list[Any]:
    """Convert operands; a rank-0 host operand becomes a plain number if all tensors have its dtype.

    Type promotion gives the same result in that case.
    """
    tensors = [value for value in passed if isinstance(value, torch.Tensor)]
    others = {tensor.dtype for tensor in tensors}
    where = tensors[0].device if tensors else device

    def as_number(value: Any) -> Any:
        if not isinstance(value, Host):
            return value
        return value.value if not value.ndim and others == {value.dtype} else value.to_tensor(where)

    pairs = zip(passed, takes, strict=True)
    return [as_number(value) if how is ParamKind.OPERAND else value for value, how in pairs]


def _check_attributes(op: Op, row: Kernel) -> None:
    """Raise if an attribute that is not at its default is unknown to the kernel."""
    proto = op.prototype
    if proto is None:
        return
    for name, attr in op.attrs.items():
        known = proto.attr_by_name.get(name)
        if (
            known is None
            or name in row.attrs
            or name in _COUNTS
            or attr.value == known.default
            or known.required
        ):
            continue
        raise UnsupportedOp(
            f"the kernel of {op.type} does not support the attribute {name!r}",
            got=f"{name}={attr.value!r}, default {known.default!r}",
            at=op.origin.source if op.origin else "",
        )


# Attributes that only repeat how many tensors a dynamic input or output has.
_COUNTS = {"N", "num", "num_split"}
