"""Infer shapes and dtypes of new ops by running their kernels on fake tensors, once for equal ops."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, faking, unclaimed_symbols
from torchair.engine.evaluate import Value, constant, evaluate, listed_constants, types_of
from torchair.engine.registry import lacking_results, why_no_kernel
from torchair.fxgraph.symbols import is_symbol
from torchair.fxgraph.value_keys import number_key, tensor_key, value_key
from torchair.ge.builder.torch_kernel_binding import CALL, inputs_of, runs_torch
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Op, Tensor
from torchair.ge.host import Host
from torchair.ge.schema.string_format import FORMAT, PRINT, STRING

_NOT_INFERRED = (*INPUT_TYPES, OUTPUT_TYPE)


def inference(fake_mode: FakeTensorMode, device: torch.device) -> Callable[[Op], None]:
    """Return a function that fills the metas of an op's outputs, for `Graph(infer=…)`."""
    seen: dict[Hashable, list[Value]] = {}

    def infer(op: Op) -> None:
        # The results of sub-graphs have the metas of FX.
        if op.type in _NOT_INFERRED or op.subgraphs:
            return
        if op.type == "Const":
            op.outputs[0].meta = _constant(op, fake_mode, device)
            return
        if _has_no_value(op):
            return
        key = op_key(op, lambda tensor: tensor.meta)
        found = seen.get(key) if key is not None else None
        if found is None:
            metas: dict[Tensor, Any] = {tensor: tensor.meta for tensor in inputs_of(op)}
            with faking(fake_mode), torch.no_grad(), unclaimed_symbols(fake_mode):
                found = evaluate(op, metas, device)
            assert len(found) == len(op.outputs), (
                f"the kernel of {op.type} returned {len(found)} results, but the op has {len(op.outputs)} "
                "outputs"
            )
            if key is not None and not makes_symbols(op, found):
                seen[key] = found
        for output, value in zip(op.outputs, found, strict=True):
            output.meta = value
        if op.type == FORMAT:
            op.outputs[0].desc.dtype = STRING
        for index, kind in lacking_results(op, types_of(op)).items():
            op.outputs[index].desc.dtype = kind

    return infer


def _has_no_value(op: Op) -> bool:
    """Return whether no kernel runs this user op, or it reads the result of such an op.

    The conversion then gives its results the values of the torch op.
    """
    if CALL in op.attrs:
        return not op.attrs[CALL].value
    return why_no_kernel(op.type) is not None or any(tensor.meta is None for tensor in op.inputs)


def _constant(op: Op, fake_mode: FakeTensorMode, device: torch.device) -> Value:
    value = constant(op, device)
    return value if isinstance(value, Host) else fake_mode.from_tensor(value, static_shapes=True)


def op_key(op: Op, value_of: Callable[[Tensor], Any], strides: bool = False) -> Hashable | None:
    """Return the key that decides the result of an op: type, attributes, and the specs of its inputs.

    None means: do not memoize.
    """
    if op.objects or op.type == PRINT:  # the printed text is not part of the key
        return None
    named = [
        (name, attr) for name, attr in sorted(op.attrs.items()) if name == CALL or not name.startswith("_")
    ]
    attrs = tuple((name, type(attr).__name__, value_key(attr.value)) for name, attr in named)
    listed = listed_constants(op)
    read = inputs_of(op)
    inputs = tuple(
        (slot.name, slot.tensor.dtype, spec_key(listed.get(slot.tensor) or value_of(slot.tensor), strides))
        for slot in op.slots
        if slot.tensor in read
    )
    # An ATen call gets the strides of FX, whatever the strides of the tensor here.
    expected = tuple(spec_key(tensor.meta, strides) for tensor in read) if runs_torch(op) else ()
    where = op.outputs[0].meta.device if op.outputs and isinstance(op.outputs[0].meta, torch.Tensor) else None
    # The same tensor twice is one input of a trace: x * x is not an instance of x * y.
    order = list(dict.fromkeys(read))
    repeats = tuple(order.index(tensor) for tensor in read)
    return op.type, attrs, inputs, repeats, expected, where, len(op.outputs)


def spec_key(value: Any, strides: bool = False) -> Hashable:
    """Return the key of a value that an op reads: the spec of a tensor, the numbers of a host value."""
    if isinstance(value, Host):
        return ("host", value.dtype, value.ndim, tuple(number_key(item) for item in value.items))
    return tensor_key(value, strides=strides)


def makes_symbols(op: Op, values: list[Value]) -> bool:
    """Return whether a result has a data-dependent size, which no input determines. Then each run has its own
    symbols.
    """
    parts = [part for value in values for part in (value.items if isinstance(value, Host) else value.shape)]
    return any(is_symbol(part) and not part.node.has_hint() for part in parts)
