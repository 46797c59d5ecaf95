"""Operators by name and schema, and their decompositions."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dispatch.python import no_python_dispatcher
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_dense,
    auto_functionalized_v2,
    auto_functionalized_v2_dense,
)
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_leaves

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "arguments_of",
    "auto_functionalized",
    "auto_functionalized_dense",
    "auto_functionalized_v2",
    "auto_functionalized_v2_dense",
    "collective",
    "decomposition_of",
    "decomposition_table",
    "find_overload",
    "has_kernel",
    "has_operator",
    "higher_order_op",
    "parse_schema",
    "process_group",
    "register_fake",
    "resizes_kept_whole",
    "resolve_overload",
    "unfunctionalized",
]


# Its decomposition returns attention weights in place of the log-sum-exp, and loses the fused kernel.
_KEPT_WHOLE = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)


def has_kernel(op: OpOverload, key: str) -> bool:
    """Return whether the op has its own kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def process_group(name: str) -> Any:
    """Return the process group that collective ops call by this name."""
    return torch.distributed.distributed_c10d._resolve_process_group(name)


def collective(name: str, *args: Any) -> Any:
    """Return the result of a functional collective of torch, after waiting for it."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(getattr(ops, name)(*args))


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Return torch's decomposition of an operator: the registered one, or its composite definition. None if
    there is none.
    """
    if op in _KEPT_WHOLE:
        return None
    found = decomposition_table.get(op)
    if found is None and isinstance(op, torch._ops.OpOverload) and op._can_decompose():
        found = op.decompose
    return found


_BEFORE = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def resizes_kept_whole() -> Iterator[None]:
    """Keep resizes of images with known sizes as ops in traces. With symbols in the trace, torch would
    decompose them into gathers first. It still does so for symbolic sizes, because its C++ ops do not accept
    symbols.
    """
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if "upsample" in name]
    ops = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    known = [(op, {key: op.py_kernels[key] for key in _BEFORE if key in op.py_kernels}) for op in ops]
    try:
        for op, kernels in known:
            op.py_kernels.update({key: _whole(op, apart) for key, apart in kernels.items()})
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in known:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _whole(op: OpOverload, apart: Callable[..., Any]) -> Callable[..., Any]:
    def resize(x: torch.Tensor, *options: Any, **named: Any) -> Any:
        numbers = tree_leaves((tuple(x.shape), options, named))
        if any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers):
            return apart(x, *options, **named)
        with no_python_dispatcher():
            return op(x, *options, **named)

    return resize


def higher_order_op(name: str) -> HigherOrderOperator:
    """Return the higher-order operator with this name."""
    return torch._ops._higher_order_ops[name]


def find_overload(name: str) -> OpOverload | None:
    """Return the operator for a name such as `npu.scatter_update_.default`; None if no library has defined
    it.
    """
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload, None)


def resolve_overload(packet: OpOverloadPacket, args: Sequence[Any], kwargs: dict[str, Any]) -> OpOverload:
    """Return the overload of a packet for a call with these (real) arguments."""
    name = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    return getattr(packet, name or "default")


def parse_schema(text: str) -> Any:
    """Parse an operator's schema: arguments with names, defaults and aliases."""
    return torch._C.parse_schema(text)


def arguments_of(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of the schema. Data types may be given as
    numbers, as schemas and code that copies values from them do.
    """
    defaults = {arg.name: arg.default_value if arg.has_default_value() else None for arg in schema.arguments}
    placed = zip([arg.name for arg in schema.arguments if not arg.kwarg_only], args, strict=False)
    given = {**defaults, **dict(placed), **kwargs}
    types = {arg.name for arg in schema.arguments if "ScalarType" in str(arg.real_type)}
    return {
        name: _data_types()[value] if name in types and isinstance(value, int) else value
        for name, value in given.items()
    }


@functools.cache
def _data_types() -> dict[int, torch.dtype]:
    """Return the data types by their numbers in schemas."""
    found: dict[int, torch.dtype] = {}
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with contextlib.suppress(RuntimeError):  # some have no name in schemas
            schema = parse_schema(f"data::type(ScalarType x={str(dtype).removeprefix('torch.')}) -> ()")
            found[schema.arguments[0].default_value] = dtype
    return found


def unfunctionalized(twin: Callable[..., Any]) -> Callable[..., Any]:
    """Return a functionalization kernel that calls `twin` on the plain tensor without a clone."""

    def run(input: torch.Tensor, *rest: Any) -> None:
        torch._sync(input)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            twin(torch._from_functional_tensor(input), *rest)

    return run


def register_fake(library: torch.library.Library, op: str, fake: Callable[..., Any]) -> None:
    """Register a fake kernel like `torch.library.register_fake`. That function searches all modules for the
    calling line, which takes ten times as long as the rest of it.
    """
    entry = torch._library.simple_registry.singleton.find(f"{library.ns}::{op}")
    handle = entry.fake_impl.register(fake, f"torchair, {fake.__module__}", lib=library)
    library._registration_handles.append(handle)


def has_operator(name: str) -> bool:
    """Return whether there is an operator `namespace::name`, without loading modules."""
    return bool(torch._C._jit_get_schemas_for_operator(name))
