"""Compile results as bytes: dataclasses of ours, numbers, tensors, operators, graphs, expressions.

What is packed is what would be the same in another process. Anything else (an event, a generator, a function
that no module has by its name) is refused when it is packed, with what it is. Unpacking names nothing but
torch and torchair. Compile results hold code, so this is no protection: who reads them from a file checks
first who wrote it.
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
"""Packages whose functions and classes are known by their names."""
NAMED = (torch.dtype, torch.layout, torch.memory_format)
"""Values that `torch` has by their names."""
SYMPY = ("sympy.", "torch.utils._sympy.")
"""Packages whose expressions sizes are written in."""
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
BUILT_IN = {
    "builtins": {"list", "dict", "set", "frozenset", "slice", "float", "complex", "range", "bytearray"},
    "collections": {"OrderedDict"},
    "functools": {"partial"},
    "torch": {"Size", "device"},
}


def pack(value: Any) -> bytes:
    """The value as bytes; `NotPossible` says what in it is no data."""
    out = io.BytesIO()
    try:
        with disable_modes(), torch.no_grad():
            _Packer(out, protocol=5).dump(value)
    except NotPossible:
        raise
    except Exception as error:
        raise NotPossible(f"it holds what is no data: {first_line(error)}") from error
    return out.getvalue()


def unpack(data: bytes) -> Any:
    """What was packed; `BadGraph` where the bytes are no such thing."""
    try:
        with disable_modes(), torch.no_grad():
            return _Unpacker(io.BytesIO(data)).load()
    except BadGraph:
        raise
    except Exception as error:
        raise BadGraph(f"this is no compile result: {type(error).__name__}: {first_line(error)}") from error


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """How the values are made again that pickle would write otherwise, or not at all."""
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
            raise NotPossible(f"{kind.__module__}.{kind.__qualname__} is no data")
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if _is_known(module, name) else None
        is_defined_there = found is not None and getattr(found, "__module__", None) == module
        if not is_defined_there or (module.startswith(SYMPY) and not _is_expression(found)):
            raise BadGraph(f"a compile result does not name {module}.{name}")
        return found


def _is_known(module: str, name: str) -> bool:
    """Is this among the classes and functions that compile results are made of?"""
    is_own = module.startswith((*OWN, *SYMPY)) and "." not in name
    return is_own or name in BUILT_IN.get(module, ())


def _is_expression(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, sympy.Basic)


def _tensor_data(value: torch.Tensor) -> tuple[Any, ...]:
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    if value.is_quantized or value.layout is not torch.strided or not is_plain:
        raise NotPossible(f"a tensor of this kind is no data: {type(value).__name__}, {value.layout}")
    plain = _carried(value.detach().cpu().resolve_conj().resolve_neg())
    # A copy even where it is contiguous: the strides of one element may be any.
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
            if step == 0:  # all of these are one element
                target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
        target.copy_(source)
    return made.to(device)


def _carried(value: torch.Tensor) -> torch.Tensor:
    """As bytes where elements are bytes: not all of these dtypes can be copied."""
    return value.view(torch.uint8) if value.dtype.itemsize == 1 else value


def _number(expr: Any, is_float: bool, is_unbacked: bool) -> Any:
    if expr.is_number:
        return float(expr) if is_float else int(expr)
    return SymExpr(expr, is_float, is_unbacked)


def _named(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, NAMED):
        raise BadGraph(f"torch.{name} is no dtype, layout or memory format")
    return found


def _overload(namespace: str, name: str, overload: str) -> OpOverload:
    found = find_overload(f"{namespace}.{name}.{overload or 'default'}")
    if not isinstance(found, OpOverload):
        raise BadGraph(f"there is no operator {namespace}.{name}.{overload}", next="import what defines it")
    return found


def _higher_order(name: str) -> HigherOrderOperator:
    try:
        return higher_order_op(name)
    except KeyError as error:
        raise BadGraph(f"there is no operator {name}", next="import what defines it") from error


def _graph(data: bytes) -> fx.GraphModule:
    return load_graph(data, FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))


def _function_name(value: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(value, "__module__", None) or "", value.__qualname__
    try:
        if _function(module, name) is value:
            return module, name
    except (ImportError, AttributeError, BadGraph):
        pass
    raise NotPossible(f"{module}.{name} is no function that a module has by its name")


def _function(module: str, name: str) -> Any:
    """Of torch, of ours, or of the standard modules that graphs compute sizes with."""
    if module.partition(".")[0] not in ("torch", "torchair", "math", "operator", "_operator"):
        raise BadGraph(f"a compile result does not call {module}.{name}")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, FUNCTIONS) or found.__module__ != module:
        raise BadGraph(f"{name} is no function of {module}")
    return found
