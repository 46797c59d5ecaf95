"""Register converters by FX target.

The modules that `convert/all_converters.py` imports declare the built-in ones; they are imported on the first
look-up. Users add converters with the public decorator.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchair.convert.base.auto_converters import BUILT_IN, automatic, why_not_automatic
from torchair.convert.base.operands import promote
from torchair.core.errors import BadConverter, UnsupportedOp
from torchair.core.log import logger
from torchair.core.registries.lazy_registry import LazyRegistry
from torchair.core.registries.user_registrations import extend, forget
from torchair.ge.graph import Tensor

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Converter:
    """One way to translate a call. `only(*args, **kwargs)` returns a reason to decline, or None."""

    fn: Fn
    only: Callable[..., str | None] | None
    wants_meta: bool
    wants_used: bool
    # The converter receives a function that makes sub-graphs of graph modules.
    wants_convert: bool = False
    from_user: bool = False


_EVERY = "torchair.convert.all_converters"
_builtin: LazyRegistry[Any, Converter] = LazyRegistry(_EVERY)
_user: dict[Any, Converter] = {}
_parts: LazyRegistry[Any, Fn] = LazyRegistry(_EVERY)
_opaque: LazyRegistry[Any, str] = LazyRegistry(_EVERY)


def converter(*targets: Any, only: Callable[..., str | None] | None = None) -> Callable[[Fn], Fn]:
    """Declare a built-in converter for one or several overloads.

    An overload of a library that need not be installed is given by name:
    `"transformers.grouped_mm_fallback.default"`.
    """

    def declare(fn: Fn) -> Fn:
        for target in targets:
            _builtin.declare(target, _describe(fn, only))
        return fn

    return declare


def register_decomposition(target: Any) -> Callable[[Fn], Fn]:
    """Register the decomposition of an op that torch itself does not decompose.

    The decomposition is a function like the op, written in torch, whose parts are converted in its place.
    """

    def declare(fn: Fn) -> Fn:
        _parts.declare(target, fn)
        return fn

    return declare


def decomposition_for(target: Any) -> Fn | None:
    """Return the built-in decomposition of an FX target, or None."""
    return _parts.get(target)


def opaque(rows: Mapping[Any, str]) -> None:
    """Register rows `overload: reason`: calls that the IR cannot express, which become opaque ops.

    An overload of a library that need not be installed is given by name.
    """
    for target, why in rows.items():
        _opaque.declare(target, why)


def why_opaque(target: Any) -> str:
    """Return why an FX target becomes an opaque op."""
    why_not = why_not_automatic(target)
    plain = "it has no converter and no decomposition" + (f"; {why_not}" if why_not else "")
    return _opaque.get(target) or _opaque.get(str(target), plain)


def map_one_to_one(rows: Mapping[Any, Fn], *, promoted: bool = False) -> None:
    """Register rows `overload: ge.Op`: same tensors, same order, no special cases.

    With `promoted` every operand is first cast to the dtype of the result, and Python numbers become
    constants of it.
    """
    for target, op in rows.items():
        converter(target)(_renamed(op, promoted))


def _renamed(op: Fn, promoted: bool) -> Fn:
    def straight(*args: Any) -> Any:
        return op(*args)

    def with_promotion(*args: Any, meta_outputs: Any) -> Any:
        return op(*promote(*args, to=meta_outputs.dtype))

    return with_promotion if promoted else straight


def _describe(fn: Fn, only: Callable[..., str | None] | None, from_user: bool = False) -> Converter:
    parameters = inspect.signature(fn).parameters
    return Converter(
        fn,
        only,
        wants_meta="meta_outputs" in parameters,
        wants_used="used" in parameters and not from_user,
        wants_convert="convert" in parameters and not from_user,
        from_user=from_user,
    )


class Registration:
    """The result of `register_fx_node_ge_converter(op)`: applied to a function, it registers that
    function.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.fn: Fn | None = None
        self.supports: list[Any] = []

    def __call__(self, fn: Fn) -> Registration:
        if not callable(fn):
            raise BadConverter("a converter must be a function", got=repr(fn))
        if self.target in _builtin or self.target in _user:
            logger.info("the converter of %s is replaced by %s", self.target, getattr(fn, "__qualname__", fn))
        self.fn = fn
        _user[self.target] = _describe(fn, None, from_user=True)
        extend(f"converter of {self.target}", fn)
        return self


class _Discard:
    """The decorator for an op that this torch does not have: it ignores the function."""

    def __call__(self, fn: Fn) -> None:
        return None


def register_fx_node_ge_converter(aten_op: Any) -> Any:
    """Register a converter for an op; it takes precedence over the built-in one.

    The converter receives the arguments of the FX node, with graph tensors in place of tensors. If it has a
    parameter `meta_outputs`, it also receives the expected results. It returns what the op returns.

    Args:
        aten_op: An op overload, an overload packet or a Python function. `None`, for an op that this torch
            does not have, ignores the function.

    Returns:
        A decorator for the converter.

    Raises:
        BadConverter: `aten_op` is not an op or a function.

    Example:
        @torchair.register_fx_node_ge_converter(torch.ops.aten.acos.default)
        def convert_acos(self, meta_outputs=None):
            return ge.Acos(self)
    """
    if aten_op is None:
        return _Discard()
    if not callable(aten_op):
        raise BadConverter(
            "a converter must be registered for an op or a function",
            got=repr(aten_op),
            near="torch.ops.mylib.op.default",
        )
    return Registration(aten_op)


def unregister(aten_op: Any) -> None:
    """Remove a user's converter; the built-in one, if any, is used again."""
    _user.pop(aten_op, None)
    forget(f"converter of {aten_op}")


def candidates(target: Any) -> list[Converter]:
    """Return the converters of an FX target in order: the user's, then the built-in one.

    Without any, return one that is created from an IR op of the same name.
    """
    packet = getattr(target, "overloadpacket", None)
    keys = (target,) if packet is None else (target, packet, str(target))
    found = [next((table[key] for key in keys if key in table), None) for table in (_user, _builtin)]
    is_opaque = target in _opaque or str(target) in _opaque
    if found == [None, None] and packet is not None and not is_opaque and target.namespace not in BUILT_IN:
        with contextlib.suppress(UnsupportedOp):
            found.append(Converter(automatic(target), None, wants_meta=False, wants_used=False))
    return [row for row in found if row is not None]


def has_converter(target: Any) -> bool:
    """Return whether there is any converter for this target."""
    return bool(candidates(target))


def builtin_targets() -> list[Any]:
    """Return all FX targets with a built-in converter."""
    return list(_builtin)


def parted_targets() -> list[Any]:
    """Return all FX targets with a built-in decomposition."""
    return list(_parts)


def opaque_reasons() -> dict[Any, str]:
    """Return the FX targets that become opaque ops on purpose, and why."""
    return dict(_opaque)


__all__ = [
    "Converter",
    "Tensor",
    "candidates",
    "converter",
    "has_converter",
    "map_one_to_one",
    "opaque",
    "register_fx_node_ge_converter",
    "why_opaque",
]
