"""Create converters for ops whose name in CamelCase is an IR op with matching parameters.

`mylib::rms_norm_functional(Tensor x, Tensor gamma, float epsilon)` becomes `RmsNorm(x, gamma; epsilon)`:
tensors first, then the other arguments as attributes, in the order of the schema. The torch op itself
computes the result here, unless the user has registered a kernel: similar names do not make two ops equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.errors import UnsupportedOp
from torchair.core.registries.user_registrations import has_user_kernel
from torchair.core.torch_private.operators.schemas import OpOverload, arguments_of
from torchair.fxgraph.effects import flat, written_names
from torchair.ge.attr import BY_PROTOTYPE, Attr, Str
from torchair.ge.builder.build import Clone, add_op, make_attr
from torchair.ge.builder.torch_kernel_binding import CALL
from torchair.ge.graph import Tensor
from torchair.ge.prototype import Param, Prototype, catalogue

SUFFIX = "_functional"
BUILT_IN = ("aten", "prim", "prims")
_SCALARS = ("number", "Scalar")


@dataclass(frozen=True)
class Automatic:
    """Convert `op` into the IR op of a prototype."""

    op: OpOverload
    proto: Prototype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = arguments_of(self.op._schema, args, kwargs)
        schema = self.op._schema.arguments
        tensors = [given[arg.name] for arg in schema if is_tensor(arg)]
        numbers = [(arg, given[arg.name]) for arg in schema if not is_tensor(arg)]
        if not written_names(self.op):
            tensors = [
                Clone(value) if param in written_inputs(self.proto) and value is not None else value
                for param, value in zip(self.proto.inputs, tensors, strict=True)
            ]
        return self._add(tensors, self._attributes(numbers))

    def _attributes(self, numbers: Sequence[tuple[Any, Any]]) -> dict[str, Attr]:
        made: dict[str, Attr] = {}
        for row, (argument, value) in zip(self.proto.attrs, numbers, strict=False):
            what = f"its argument {argument.name!r}"
            if isinstance(value, Tensor):
                raise NotImplementedError(
                    f"{what} is a symbolic size, but it is an attribute of {self.proto.name}"
                )
            if value is None and row.required:
                raise NotImplementedError(f"{what} is None, but {self.proto.name} requires it")
            if value is None and argument.default_value is not None and row.default is not None:
                raise NotImplementedError(f"{what} is None, but its default would be {row.default!r}")
            if value is not None:
                made[row.name] = make_attr(self.proto.name, row, value)
        return made

    def _add(self, tensors: Sequence[Any], attrs: dict[str, Attr]) -> Any:
        proto = self.proto
        for param, value in zip(proto.inputs, tensors, strict=True):
            _check_input(proto, param, value)
        if not has_user_kernel(proto.name, device_of(tensors)):
            attrs = {**attrs, CALL: Str("")}
        inputs = dict(zip(proto.input_names, tensors, strict=True))
        result = add_op(proto.name, inputs, attrs, [(param.name, None) for param in proto.outputs])
        results = list(result) if isinstance(result, tuple) else [result] if result is not None else []
        if written_names(self.op):
            own = {param.name for param in written_inputs(proto)}
            pairs = zip(proto.outputs, results, strict=True)
            results = [value for param, value in pairs if param.name not in own]
        return results[0] if len(results) == 1 else (tuple(results) if results else None)


def device_of(values: Iterable[Any]) -> str:
    """Return the device type of the tensors among these; empty if there are none."""
    metas = [tensor.meta for tensor in flat(list(values)) if isinstance(tensor, Tensor)]
    return next((meta.device.type for meta in metas if isinstance(meta, torch.Tensor)), "")


def automatic(op: Any) -> Automatic:
    """Return the converter, or raise `UnsupportedOp` (a `RuntimeError`) with the reason."""
    if not isinstance(op, OpOverload):
        raise _cannot(op, "it is not an op overload")
    if op.namespace in BUILT_IN:
        raise _cannot(op, "it is one of torch's own ops")
    scalars = [arg.name for arg in op._schema.arguments if _is_scalar(arg)]
    if scalars:
        raise _cannot(op, f"its parameter {scalars[0]!r} is a Scalar, which may have any type")
    name = camel_case(op._schema.name.split("::")[1].removesuffix(SUFFIX))
    if name not in catalogue():
        raise _cannot(op, f"no IR op {name!r} is registered")
    proto = catalogue()[name]
    why_not = _why_not(op, proto)
    if why_not is not None:
        raise _cannot(op, f"{why_not}: {proto}")
    return Automatic(op, proto)


def why_not_automatic(op: Any) -> str:
    """Return why no converter can be created for an op; empty if one can be, or the op is torch's own."""
    if not isinstance(op, OpOverload) or op.namespace in BUILT_IN:
        return ""
    try:
        automatic(op)
    except UnsupportedOp as error:
        return error.what
    return ""


def camel_case(name: str) -> str:
    """Convert `rms_norm` to `RmsNorm`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def is_tensor(argument: Any) -> bool:
    """Return whether this argument of a schema is a tensor, or a list of tensors. They may be optional."""
    return "Tensor" in str(argument.type)


def written_inputs(proto: Prototype) -> tuple[Param, ...]:
    """Return the inputs that the IR op writes: those that are also outputs."""
    outputs = {param.name for param in proto.outputs}
    return tuple(param for param in proto.inputs if param.name in outputs)


def _is_scalar(argument: Any) -> bool:
    text = str(argument.type)
    return any(word in text for word in _SCALARS)


def _why_not(op: OpOverload, proto: Prototype) -> str | None:
    """Return how the schema does not match the prototype, or None."""
    arguments = op._schema.arguments
    tensors = sum(map(is_tensor, arguments))
    written, results = len(written_names(op)), len(op._schema.returns)
    unknown = [row.name for row in proto.attrs if row.type not in BY_PROTOTYPE]
    checks: dict[str, bool] = {
        f"it has {tensors} tensors, but the IR op has {len(proto.inputs)} inputs": tensors
        == len(proto.inputs),
        f"it has {len(arguments) - tensors} other parameters, but the IR op has {len(proto.attrs)} "
        "attributes": (len(arguments) - tensors <= len(proto.attrs)),
        f"it returns {results} and writes {written}, but the IR op has {len(proto.outputs)} outputs": (
            results + written == len(proto.outputs)
        ),
        f"it writes {written} of its arguments, but the IR op writes {len(written_inputs(proto))}": (
            not written or written == len(written_inputs(proto))
        ),
        "the IR op returns a list of unknown length": all(param.kind != "dynamic" for param in proto.outputs),
        f"the attributes {unknown} of the IR op have an unknown type": not unknown,
    }
    return next((what for what, holds in checks.items() if not holds), None)


def _check_input(proto: Prototype, param: Param, value: Any) -> None:
    is_list = isinstance(value, list | tuple)
    if value is None and param.kind != "optional":
        raise NotImplementedError(f"the input {param.name!r} of {proto.name} must be given")
    if value is not None and is_list != (param.kind == "dynamic"):
        kinds = ("a list of tensors", "one tensor")
        raise NotImplementedError(
            f"it passes {kinds[not is_list]} for {param.name!r}, but {proto.name} expects {kinds[is_list]}"
        )


def _cannot(op: Any, why: str) -> UnsupportedOp:
    return UnsupportedOp(f"cannot create a converter for {op}: {why}")
