"""Register kernels, find them and call them.

The modules that `engine/all_kernels.py` imports declare the kernels; they are imported on the first look-up.

A kernel is a pure function of tensors and attributes. Its positional parameters are the prototype's inputs in
order, its keyword-only parameters the attributes it needs. It may also have `device`, for ops that make
tensors from nothing, and `types`, where GE data types of inputs are more precise than their tensors. An input
annotated with `Host` or with an annotation of `core/kernel_params.py` is passed as Python numbers, an input
annotated `Value` as a tensor or a `Host`, whichever it is. All other inputs are torch tensors.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch

from torchair.core import dtypes
from torchair.core.errors import BadKernel, UnsupportedOp
from torchair.core.kernel_params import ParamKind
from torchair.core.registries.lazy_registry import LazyRegistry
from torchair.ge.graph import Op
from torchair.ge.host import Host
from torchair.ge.prototype import prototype
from torchair.ge.schema.string_format import FORMAT, PRINT

Value = Annotated[torch.Tensor | Host, ParamKind.VALUE]
"""Annotation of an input whose data is not read: it is passed unchanged."""

Fn = Callable[..., Any]
Makes = str | Callable[[Mapping[str, Any]], int]


@dataclass(frozen=True)
class Kernel:
    """One definition of an op: for one device type, or for all (`on` None)."""

    op: str
    fn: Fn
    on: str | None
    only: Callable[..., str | None] | None
    # Per input of the prototype.
    takes: tuple[ParamKind, ...]
    attrs: tuple[str, ...]
    wants_device: bool
    wants_types: bool = False
    # Output -> its type, if torch may lack it: the name of the attribute (or of the input) that holds it, or
    # a function of all of them.
    makes: Mapping[int, Makes] = field(default_factory=dict[int, "Makes"])
    # On a device the op writes in place, after a TensorMove; this kernel returns a new tensor, so it needs no
    # copy.
    is_pure: bool = False


# Annotations that define by themselves how an input is passed.
_PLAIN = {torch.Tensor: ParamKind.TENSOR, list[torch.Tensor]: ParamKind.TENSOR, Host: ParamKind.HOST}
_FORMS = (
    "annotate inputs as Ints, Int, Number, Operand (core/kernel_params.py), Value or Host; tensors have "
    "no annotation"
)
# Keyword-only parameters that are not attributes.
_GIVEN = {"device", "types"}
_EVERY = "torchair.engine.all_kernels"
_kernels: LazyRegistry[tuple[str, str | None], Kernel] = LazyRegistry(_EVERY)
# Built-in kernels that users' kernels replace.
_replaced: dict[tuple[str, str | None], Kernel | None] = {}
_devices: set[str] = set()
_host_kernels: LazyRegistry[str, Fn] = LazyRegistry(_EVERY)
# Ops that `evaluate` runs without a kernel.
_SPECIAL = frozenset({"TorchOp", "Shape", "Const", FORMAT, PRINT})
_without: LazyRegistry[str, tuple[str, str]] = LazyRegistry(_EVERY)


def kernel(
    *ops: str,
    on: str | None = None,
    only: Callable[..., str | None] | None = None,
    pure: bool = False,
    makes: Mapping[int, Makes] | None = None,
) -> Callable[[Fn], Fn]:
    """Declare the meaning of one or several ops. `only` returns a reason to decline, for device rules.

    `pure` is for an op that writes in place on a device: this kernel does not write its inputs and returns a
    new tensor. `makes` defines the types of outputs for which torch has no dtype.
    """

    def declare(fn: Fn) -> Fn:
        for op in ops:
            row = describe(op, fn, on)
            _add(dataclasses.replace(row, only=only, is_pure=pure, makes=makes or {}))
        return fn

    return declare


def torch_kernels(rows: Mapping[str, Fn], *, numbers: bool = False) -> None:
    """Register ops that are one torch function of their inputs, in order, without attributes.

    With `numbers` the function accepts a Python number in any position but the first.
    """
    for op, fn in rows.items():
        rest = len(prototype(op).inputs) - 1
        takes = (ParamKind.TENSOR, *((ParamKind.OPERAND if numbers else ParamKind.TENSOR,) * rest))
        _add(Kernel(op, fn, None, None, takes, (), wants_device=False))


def attribute_kernels(rows: Mapping[str, Fn]) -> None:
    """Register ops whose attributes are the inputs of another op: its kernel serves both."""
    for op, fn in rows.items():
        proto = prototype(op)
        wanted = inspect.signature(fn).parameters
        attrs = tuple(name for name in wanted if name in proto.attr_by_name)
        assert len(proto.inputs) + len(attrs) == len(wanted), f"{op} lacks a parameter of its kernel"
        _add(Kernel(op, fn, None, None, (ParamKind.TENSOR,) * len(proto.inputs), attrs, wants_device=False))


def without_kernel(rows: Mapping[str, tuple[str, str]]) -> None:
    """Register ops that cannot have a kernel, with the reason and what to do, for their error."""
    for op, why in rows.items():
        _without.declare(op, why)


def why_without(op: str) -> str:
    """Return why an op cannot have a kernel, and what to do; empty for an op that just has none."""
    return "; ".join(_without.get(op, ()))


def host_kernels(rows: Mapping[str, Fn]) -> None:
    """Register size arithmetic: `fn(*inputs: Host, **attributes) -> Host | list[Host] | None`.

    It is used when every input is a host value; if it returns None, the ordinary kernel computes.
    """
    for op, fn in rows.items():
        _host_kernels.declare(op, fn)


def describe(op: str, fn: Fn, on: str | None, signature: inspect.Signature | None = None) -> Kernel:
    """Create the registry entry of a kernel from its signature, or from the given one."""
    parameters = (signature or inspect.signature(fn)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    proto = prototype(op)
    if len(positional) != len(proto.inputs):
        raise _bad(fn, f"takes {len(positional)} inputs, but {op} has {len(proto.inputs)}", near=str(proto))
    if unknown := set(named) - set(proto.attr_by_name) - _GIVEN:
        raise _bad(fn, f"has parameters that are not attributes of {op}: {sorted(unknown)}", near=str(proto))
    hints = _annotations(fn)
    takes = tuple(_param_kind(fn, p.name, hints.get(p.name, torch.Tensor)) for p in positional)
    attrs = tuple(name for name in named if name not in _GIVEN)
    return Kernel(op, fn, on, None, takes, attrs, "device" in named, "types" in named)


def _annotations(fn: Fn) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise _bad(fn, f"has an invalid annotation: {error}") from error


def _param_kind(fn: Fn, name: str, hint: Any) -> ParamKind:
    """Return the parameter kind of an annotation; an optional input is passed in the same form, or as
    None.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    declared = [_PLAIN.get(kind) or _mark(kind) for kind in kinds if kind is not NoneType]
    if len(declared) != 1 or declared[0] is None:
        raise _bad(fn, f"declares its input {name!r} as {hint}, which is not a supported annotation")
    return declared[0]


def _mark(hint: Any) -> ParamKind | None:
    marks = getattr(hint, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, ParamKind)), None)


def _bad(fn: Fn, what: str, near: str = _FORMS) -> BadKernel:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return BadKernel(
        f"the kernel {getattr(fn, '__name__', fn)} {what}",
        at="" if code is None else f"{code.co_filename}:{code.co_firstlineno}",
        near=near,
        next="see docs/contributing/add-a-kernel.md",
    )


def _add(row: Kernel) -> None:
    _kernels.declare((row.op, row.on), row)
    _devices.update([] if row.on is None else [row.on])


def set_kernel(row: Kernel) -> None:
    """Register a user's kernel, replacing the previous one."""
    key = (row.op, row.on)
    _replaced.setdefault(key, _kernels.get(key))
    _kernels[key] = row
    _devices.update([] if row.on is None else [row.on])


def restore_kernel(op: str, on: str | None) -> None:
    """Restore the kernel that a user's kernel replaced, if any."""
    before = _replaced.pop((op, on), None)
    _kernels.pop((op, on), None)
    if before is not None:
        _kernels[op, on] = before


def has_kernel(op: str) -> bool:
    """Return whether this op has a definition for every device."""
    return (op, None) in _kernels


def why_no_kernel(op: str) -> str | None:
    """Return why no op of this type can run here, or None."""
    if op in _SPECIAL or op in _host_kernels or any((op, on) in _kernels for on in (None, *_devices)):
        return None
    return why_without(op) or f"the IR op {op} has no kernel"


def is_pure_writer(op: str) -> bool:
    """Return whether the op writes in place on a device, but returns a new tensor here."""
    return (op, None) in _kernels and _kernels[op, None].is_pure


def kernel_names() -> list[str]:
    """Return the names of all ops that have a definition."""
    return sorted({op for op, _ in _kernels})


def find_kernel(op: Op, device: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Kernel:
    """Find the kernel: (op, device), then (op, any device), then an error that lists what was tried."""
    tried: list[str] = []
    for on in (device, None):
        row = _kernels.get((op.type, on))
        if row is None:
            tried.append(f"no kernel on {on or 'any device'}")
            continue
        why_not = row.only(*inputs, **attrs) if row.only else None
        if why_not is None:
            return row
        tried.append(f"the kernel on {on or 'any device'} declined: {why_not}")
    how = "see docs/contributing/add-a-kernel.md for how to add one"
    why, cure = _without.get(op.type, ("; ".join(tried), how))
    raise UnsupportedOp(
        f"the IR op {op.type} has no kernel",
        at=op.origin.source if op.origin else "",
        got=f"op {op.name}",
        near=why,
        next=cure,
    )


def param_kinds_of(op_type: str) -> tuple[ParamKind, ...]:
    """Return how the kernel for every device takes each input of the op; empty if there is none."""
    row = _kernels.get((op_type, None))
    return () if row is None else row.takes


def lacking_results(op: Op, types: Mapping[str, int]) -> dict[int, int]:
    """Return the data types of outputs for which torch has no dtype, by output index."""
    row = _kernels.get((op.type, None))
    if row is None or not row.makes:
        return {}
    known = {**types, **op.attributes()}
    found = {i: known.get(of) if isinstance(of, str) else of(known) for i, of in row.makes.items()}
    return {index: kind for index, kind in found.items() if kind in dtypes.LACKING}


def find_host_kernel(op_type: str) -> Fn | None:
    """Return the size arithmetic of an op, if it has one."""
    return _host_kernels.get(op_type)


def as_host(value: torch.Tensor | Host) -> Host:
    """Return Python numbers from a value; real data is read, fake data becomes unbacked symbols."""
    if isinstance(value, Host):
        return value
    listed = value.tolist() if value.ndim else value.item()
    return Host(tuple(listed) if isinstance(listed, list) else listed, value.dtype)
