"""Serialize compile results: dataclasses of torchair, numbers, tensors, operators, graphs, expressions.

Only values that mean the same in another process can be packed. Others (an event, a generator, a function
that is not accessible by name) raise an error that names them. Unpacking loads only names of torch and
torchair. Compile results contain code, so this is not a protection: code that reads them from a file first
checks who wrote it.
"""

from __future__ import annotations

import importlib
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from torchair.core.errors import BadGraph, NotPossible, first_line
from torchair.core.sym_expr import SymExpr
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    disable_modes,
    dump_graph,
    is_unbacked,
    load_graph,
)
from torchair.core.torch_private.operators.schemas import (
    HigherOrderOperator,
    OpOverload,
    find_overload,
    higher_order_op,
)

OWN = ("torchair.",)
"""Packages whose functions and classes are serialized by name."""
NAMED = (torch.dtype, torch.layout, torch.memory_format)
"""Values that are attributes of `torch`."""
SYMPY = ("sympy.", "torch.utils._sympy.")
"""Packages with the expressions for sizes."""
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
BUILT_IN = {
    "builtins": {"list", "dict", "set", "frozenset", "slice", "float", "complex", "range", "bytearray"},
    "collections": {"OrderedDict"},
    "functools": {"partial"},
    "torch": {"Size", "device"},
}


def pack(value: Any) -> bytes:
    """Serialize a value.

    Raises:
        NotPossible: if a part of it cannot be serialized; the message names the part.
    """
    out = io.BytesIO()
    try:
        with disable_modes(), torch.no_grad():
            _Packer(out, protocol=5).dump(value)
    except NotPossible:
        raise
    except Exception as error:
        raise NotPossible(f"a part of it cannot be serialized: {first_line(error)}") from error
    return out.getvalue()


def unpack(data: bytes) -> Any:
    """Return the value that was packed.

    Raises:
        BadGraph: if the bytes are not a serialized compile result.
    """
    try:
        with disable_modes(), torch.no_grad():
            return _Unpacker(io.BytesIO(data)).load()
    except BadGraph:
        raise
    except Exception as error:
        raise BadGraph(
            f"invalid or damaged compile result: {type(error).__name__}: {first_line(error)}"
        ) from error


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Reduce values that pickle would serialize differently, or not at all."""
        if isinstance(value, torch.Tensor):
            return _tensor, _tensor_data(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return _number, (value.node.expr, isinstance(value, torch.SymFloat), is_unbacked(value))
        if isinstance(value, NAMED):
            return _named, (str(value).removeprefix("torch."),)
        if isinstance(value, OpOverload):
            return _overload, (value.namespace, *value._schema.name.split("::")[1:], value._overloadname)
        if isinstance(value, HigherOrderOperator):
            return _higher_order, (value.name(),)
        if isinstance(value, immutable_list | immutable_dict):
            return (list, (list(value),)) if isinstance(value, list) else (dict, (dict(value),))
        if isinstance(value, fx.GraphModule):
            return _graph, (dump_graph(value),)
        if isinstance(value, FUNCTIONS) and not (value.__module__ or "").startswith(OWN):
            return _function, _function_name(value)
        kind = value if isinstance(value, (type, *FUNCTIONS)) else type(value)
        if not _is_known(kind.__module__, kind.__qualname__):
            raise NotPossible(f"{kind.__module__}.{kind.__qualname__} cannot be serialized")
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if _is_known(module, name) else None
        is_defined_there = found is not None and getattr(found, "__module__", None) == module
        if not is_defined_there or (module.startswith(SYMPY) and not _is_expression(found)):
            raise BadGraph(f"a compile result must not refer to {module}.{name}")
        return found


def _is_known(module: str, name: str) -> bool:
    """Return whether compile results may contain this class or function."""
    is_own = module.startswith((*OWN, *SYMPY)) and "." not in name
    return is_own or name in BUILT_IN.get(module, ())


def _is_expression(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, sympy.Basic)


def _tensor_data(value: torch.Tensor) -> tuple[Any, ...]:
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    if value.is_quantized or value.layout is not torch.strided or not is_plain:
        raise NotPossible(f"a {type(value).__name__} with the layout {value.layout} cannot be serialized")
    plain = _carried(value.detach().cpu().resolve_conj().resolve_neg())
    # A copy even if it is contiguous: a single element may have any stride.
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return content, value.dtype, tuple(value.shape), tuple(value.stride()), str(value.device)


def _tensor(
    content: bytes, dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...], device: str
) -> torch.Tensor:
    made = torch.empty_strided(sizes, strides, dtype=dtype)
    if content:
        target = _carried(made)
        source = torch.frombuffer(bytearray(content), dtype=target.dtype).view(sizes)
        for dim, step in enumerate(strides):
            if step == 0:  # all indices refer to one element
                target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
        target.copy_(source)
    return made.to(device)


def _carried(value: torch.Tensor) -> torch.Tensor:
    """View one-byte elements as bytes: some of these dtypes cannot be copied."""
    return value.view(torch.uint8) if value.dtype.itemsize == 1 else value


def _number(expr: Any, is_float: bool, is_unbacked: bool) -> Any:
    if expr.is_number:
        return float(expr) if is_float else int(expr)
    return SymExpr(expr, is_float, is_unbacked)


def _named(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, NAMED):
        raise BadGraph(f"torch.{name} is not a dtype, layout or memory format")
    return found


def _overload(namespace: str, name: str, overload: str) -> OpOverload:
    found = find_overload(f"{namespace}.{name}.{overload or 'default'}")
    if not isinstance(found, OpOverload):
        raise BadGraph(
            f"the operator {namespace}.{name}.{overload} is not registered", next="import its module first"
        )
    return found


def _higher_order(name: str) -> HigherOrderOperator:
    try:
        return higher_order_op(name)
    except KeyError as error:
        raise BadGraph(f"the operator {name} is not registered", next="import its module first") from error


def _graph(data: bytes) -> fx.GraphModule:
    return load_graph(data, FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))


def _function_name(value: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(value, "__module__", None) or "", value.__qualname__
    try:
        if _function(module, name) is value:
            return module, name
    except (ImportError, AttributeError, BadGraph):
        pass
    raise NotPossible(f"{module}.{name} is not accessible by name in its module")


def _function(module: str, name: str) -> Any:
    """Return a function of torch, torchair, or the standard modules that compute sizes."""
    if module.partition(".")[0] not in ("torch", "torchair", "math", "operator", "_operator"):
        raise BadGraph(f"a compile result must not call {module}.{name}")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, FUNCTIONS) or found.__module__ != module:
        raise BadGraph(f"{name} is not a function of {module}")
    return found
