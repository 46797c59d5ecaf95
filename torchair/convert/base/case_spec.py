"""Declare cases of converters: the calls that a converter supports, as data that the self-test can run.

`F32(2, 3)` stands for a tensor of that dtype and shape, `T([1, 2], dtype=torch.int64)` for one with these
values; everything else in a `Support` is passed as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.convert.base.registry import Registration
from torchair.core.errors import BadConverter
from torchair.core.torch_private.operators.schemas import OpOverload, OpOverloadPacket


@dataclass(frozen=True)
class TypedTensor:
    """Describe a tensor to create: noise of a dtype and shape, or a literal value."""

    name: str
    dtype: torch.dtype | None
    dims: tuple[int, ...] = ()
    value_range: tuple[float, float] | None = None
    value: Any = None

    def make(self) -> torch.Tensor:
        """Create the tensor from torch's current random state: normal noise, or uniform in `value_range`."""
        if self.name == "T":
            return torch.tensor(self.value, dtype=self.dtype)
        if self.value_range is None:
            return _noise(self.dims, self.dtype)
        low, high = self.value_range
        return (torch.rand(self.dims) * (high - low) + low).to(self.dtype)

    def __repr__(self) -> str:
        if self.name == "T":
            return f"T({self.value!r}, dtype={self.dtype})"
        within = "" if self.value_range is None else f", value_range={self.value_range}"
        return f"{self.name}({', '.join(map(str, self.dims))}{within})"


def _noise(dims: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
    """Return normal noise without a lossy cast: bools would all be true, negative bytes undefined."""
    if dtype is not None and dtype.is_complex:
        return torch.randn(dims, dtype=torch.complex64).to(dtype)
    noise = torch.randn(dims)
    if dtype == torch.bool:
        return noise > 0
    return (noise.abs() if dtype == torch.uint8 else noise).to(dtype)


class TensorType:
    """A dtype by its short name; calling it with sizes describes a tensor."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self.dtype = dtype

    def __call__(self, *dims: int, value_range: tuple[float, float] | None = None) -> TypedTensor:
        return TypedTensor(self.name, self.dtype, dims, value_range)

    def __repr__(self) -> str:
        return self.name


F32 = TensorType("F32", torch.float32)
F16 = TensorType("F16", torch.float16)
BF16 = TensorType("BF16", torch.bfloat16)
F64 = TensorType("F64", torch.float64)
I64 = TensorType("I64", torch.int64)
I32 = TensorType("I32", torch.int32)
I16 = TensorType("I16", torch.int16)
I8 = TensorType("I8", torch.int8)
U8 = TensorType("U8", torch.uint8)
C64 = TensorType("C64", torch.complex64)
BOOL = TensorType("BOOL", torch.bool)


def T(value: Any, dtype: torch.dtype | None = None) -> TypedTensor:
    """Describe a tensor with exactly this value.

    Args:
        value: A number, or nested lists of numbers.
        dtype: Data type; by default the one that torch infers.

    Returns:
        The description of the tensor, for use in a `Support`.

    Example:
        Support(T([1, 2], dtype=torch.int64))
    """
    _no_tensors(value)
    return TypedTensor("T", dtype, value=value)


class Support:
    """Declare one call of an op that its converter covers.

    Positional and keyword arguments are those of the op, with tensors described by `F32(2, 3)` or `T(...)`.

    Example:
        Support(F32(2, 2), F16(2, 1), alpha=2)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_tensors((args, kwargs))
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        named = (f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"Support({', '.join([*map(repr, self.args), *named])})"


def _no_tensors(value: Any) -> None:
    """Raise for a real tensor: a declaration is text, and the values would not be in it."""
    if isinstance(value, torch.Tensor):
        raise BadConverter(
            "a declared case contains a real tensor",
            got=f"{value.dtype}{list(value.shape)}",
            next="describe it: F32(2, 3), or T([1.0, 2.0]) for a literal value",
        )
    parts = value.values() if isinstance(value, Mapping) else value
    for part in parts if isinstance(parts, Iterable) and not isinstance(parts, str) else ():
        _no_tensors(part)


_builtin: dict[Any, list[Support]] = {}
_user: dict[Any, list[Support]] = {}


def declare_supported(supports: Sequence[Support]) -> Callable[[Registration], Registration]:
    """Declare which calls a converter covers; apply it above `register_fx_node_ge_converter`.

    A second declaration for the same op replaces the first.

    Args:
        supports: The calls, each a `Support`.

    Returns:
        A decorator for the result of `register_fx_node_ge_converter`.

    Raises:
        BadConverter: A case is not a `Support`, or the decorator is applied in the wrong order.

    Example:
        @declare_supported([Support(F32(2, 3)), Support(F16(2, 3), alpha=2)])
        @register_fx_node_ge_converter(torch.ops.mylib.scale.default)
        def convert_scale(x, alpha=1.0, meta_outputs=None):
            return ge.Muls(x, value=alpha)
    """
    listed = list(supports)
    for support in listed:
        if not isinstance(support, Support):
            raise BadConverter("every declared case must be a Support", got=repr(support))

    def declare(registration: Registration) -> Registration:
        if not isinstance(registration, Registration):
            raise BadConverter(
                "declare_supported must be applied above register_fx_node_ge_converter",
                got=repr(registration),
                next="put the register decorator between it and the function",
            )
        registration.supports = listed
        _user[registration.target] = listed
        return registration

    return declare


def supported(*targets: Any, cases: Sequence[Support]) -> None:
    """Declare that each of these targets of built-in converters covers these cases."""
    for target in targets:
        _builtin.setdefault(target, []).extend(cases)


def forget_supported(aten_op: Any) -> None:
    """Remove a user's declarations for an op."""
    _user.pop(aten_op, None)


def declared(prefix: str = "") -> Iterator[tuple[Any, Support]]:
    """Yield every (target, case) whose op name, with or without the library, starts with `prefix`."""
    rows = [*_builtin.items(), *_user.items()]
    for target, cases in sorted(rows, key=lambda row: target_name(row[0])):
        name = target_name(target)
        if name.startswith(prefix) or name.partition(".")[2].startswith(prefix):
            yield from ((target, case) for case in cases)


def target_name(target: Any) -> str:
    """Return `aten.add.Tensor`, or the name of a Python function."""
    return str(target) if isinstance(target, OpOverload | OpOverloadPacket) else target.__name__
