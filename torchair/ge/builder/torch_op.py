"""Represent an ATen call as an opaque `TorchOp` in the IR. Its target and arguments are data (JSON text).

Tensors are written `{"x": i}`, symbolic numbers `{"n": i}` (both are indices of the op's inputs); torch's own
kinds and operators by name. Python objects that cannot be text (the graph modules of higher-order ops) are
named in `Op.objects`. `ge/builder/torch_kernel_binding.py` binds ops of other types to such a call.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.errors import BadGraph
from torchair.core.torch_private.operators.schemas import (
    HigherOrderOperator,
    OpOverload,
    find_overload,
    higher_order_op,
)
from torchair.ge.attr import Str
from torchair.ge.builder.build import add_op
from torchair.ge.graph import Op, Tensor
from torchair.ge.host import Host


@dataclass(frozen=True)
class Symbol:
    """A symbolic number among the arguments of an FX call, and the rank-0 tensor that carries it."""

    tensor: Tensor


_TORCH_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
    "device": torch.device,
}


def torch_op(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: int, name: str
) -> list[Tensor]:
    """Add a TorchOp for `target(*args, **kwargs)`, which returns `results` values when flattened."""
    text, tensors, objects = encoded(args, kwargs)
    if not isinstance(target, OpOverload):
        objects["target"] = target
    attrs = {"target": Str(name), "args": Str(text), "results": Str(str(results))}
    outputs: list[Tensor] = add_op("TorchOp", {"x": tensors}, attrs, [("y", results)], objects=objects)
    return outputs


def encoded(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Tensor], dict[str, Any]]:
    """Return the arguments of a call as text, the tensors it refers to, and the objects it names."""
    tensors: list[Tensor] = []
    objects: dict[str, Any] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, Tensor | Symbol):
            tensors.append(value if isinstance(value, Tensor) else value.tensor)
            return {"x" if isinstance(value, Tensor) else "n": len(tensors) - 1}
        if isinstance(value, list | tuple):
            return [encode(item) for item in value]
        if isinstance(value, dict):
            return {"dict": {key: encode(item) for key, item in value.items()}}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, OpOverload):
            return {"op": str(value)}
        for kind, known in _TORCH_KINDS.items():
            if isinstance(value, known):
                return {kind: str(value).removeprefix("torch.")}
        key = f"object_{len(objects)}"
        objects[key] = value
        return {"object": key}

    text = json.dumps([encode(list(args)), {key: encode(value) for key, value in kwargs.items()}])
    return text, tensors, objects


def torch_call(
    op: Op, values: Sequence[torch.Tensor | Host], device: torch.device
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the callable and arguments of a TorchOp, with values in place of graph tensors."""
    target = op.objects.get("target") or target_of(op, op.attrs["target"].value)
    args, kwargs = decoded(op, op.attrs["args"].value, values, device)
    return target, args, kwargs


def decoded(
    op: Op, text: str, values: Sequence[torch.Tensor | Host], device: torch.device
) -> tuple[list[Any], dict[str, Any]]:
    """Decode arguments from their text, with values in place of graph tensors."""

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind in ("x", "n"):
            found = values[content]
            if not isinstance(found, Host):
                return found
            return found.value if kind == "n" else found.to_tensor(device)
        if kind == "dict":
            return {key: decode(item) for key, item in content.items()}
        if kind == "complex":
            return complex(*content)
        if kind == "object":
            return op.objects[content]
        if kind == "op":
            return target_of(op, content)
        return torch.device(content) if kind == "device" else getattr(torch, content)

    args, kwargs = json.loads(text)
    return decode(args), {key: decode(value) for key, value in kwargs.items()}


def target_of(op: Op, name: str) -> Any:
    """Return the operator with this name: an overload, or a higher-order operator."""
    found = find_target(name)
    if found is None:
        raise BadGraph(
            f"{op.name} ({op.type}) calls {name!r}, which is not a registered operator",
            next="import the module that defines it",
        )
    return found


def find_target(name: str) -> OpOverload | HigherOrderOperator | None:
    """Return `demo.twist.default` or `higher_order.auto_functionalized_v2`, or None if it is not defined."""
    if name.startswith(HIGHER_ORDER):
        with contextlib.suppress(KeyError):
            return higher_order_op(name.removeprefix(HIGHER_ORDER))
        return None
    return find_overload(name) if name.count(".") == 2 else None


HIGHER_ORDER = "higher_order."
"""Prefix of the names of higher-order operators."""
