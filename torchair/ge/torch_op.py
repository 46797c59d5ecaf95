"""`TorchOp`: an ATen call carried through the IR as it is. Its target and arguments are data (JSON text).

Tensors are written `{"x": i}`, numbers that are symbols `{"n": i}` (both count the op's inputs); torch's own
kinds by name; Python objects that cannot be text (the graph modules of higher-order ops) by name in
`Op.objects`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.errors import BadGraph
from torchair.core.torch_private.ops import OpOverload, find_overload
from torchair.ge.attr import Str
from torchair.ge.build import add_op
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
        for kind, known in _TORCH_KINDS.items():
            if isinstance(value, known):
                return {kind: str(value).removeprefix("torch.")}
        key = f"object_{len(objects)}"
        objects[key] = value
        return {"object": key}

    text = json.dumps([encode(list(args)), {key: encode(value) for key, value in kwargs.items()}])
    if not isinstance(target, OpOverload):
        objects["target"] = target
    attrs = {"target": Str(name), "args": Str(text), "results": Str(str(results))}
    made: list[Tensor] = add_op("TorchOp", {"x": tensors}, attrs, [("y", results)], objects=objects)
    return made


def torch_call(
    op: Op, values: Sequence[torch.Tensor | Host], device: torch.device
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The callable and arguments a TorchOp stands for, with values in place of graph tensors."""

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
        return torch.device(content) if kind == "device" else getattr(torch, content)

    args, kwargs = json.loads(op.attrs["args"].value)
    name = op.attrs["target"].value
    target = op.objects.get("target") or find_overload(name)
    if target is None:
        raise BadGraph(f"{op.name} calls {name!r}, which is no operator here", next="import what defines it")
    return target, decode(args), {key: decode(value) for key, value in kwargs.items()}
