"""Kernels that users give to ops of the IR: `torchair.ge.register_kernel`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from torchair.core.errors import BadKernel
from torchair.core.kernel_params import ParamKind
from torchair.core.log import logger
from torchair.core.registries.user_registrations import extend, forget, kernel_title
from torchair.devices import is_known
from torchair.engine.registry import Fn, Kernel, describe, has_kernel, restore_kernel, set_kernel
from torchair.ge.prototype import Prototype, prototype


@overload
def register_kernel(op: str, fn: Fn, *, on: str | None = None) -> Fn: ...
@overload
def register_kernel(op: str, *, on: str | None = None) -> Callable[[Fn], Fn]: ...
def register_kernel(op: str, fn: Fn | None = None, *, on: str | None = None) -> Any:
    """Give the IR op a meaning: `fn(*inputs, **attributes)` over torch tensors, an optional input that is not
    there is None, a list of tensors a list. It is run on fake tensors to infer shapes, on real ones as the
    reference, and traced for code. Without `fn` this is a decorator; `on` restricts it to a device.
    """
    if not isinstance(op, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise BadKernel("register_kernel takes the name of an IR op first", got=repr(op))
    if fn is None:
        return lambda decorated: register_kernel(op, decorated, on=on)
    if not callable(fn):
        raise BadKernel(f"the kernel of {op} must be a function", got=repr(fn))
    if on is not None and not is_known(on):
        raise BadKernel(
            f"the kernel of {op} is for a device of no known type", got=repr(on), near="cpu, cuda, npu"
        )
    row = kernel_of(op, fn, on)
    if has_kernel(op):
        logger.info("the kernel of %s is replaced by %s", op, getattr(fn, "__qualname__", fn))
    set_kernel(row)
    extend(kernel_title(op, on), fn)
    return fn


def unregister_kernel(op: str, *, on: str | None = None) -> None:
    """Forget a user's kernel; ours, if there is one, serves again."""
    restore_kernel(op, on)
    forget(kernel_title(op, on))


def kernel_of(op: str, fn: Fn, on: str | None = None) -> Kernel:
    """The row of a user's kernel: attributes may be keyword-only or stand after the inputs, and `**attrs`
    takes all. A function that does not tell its parameters, as torch's own, takes all inputs in order.
    """
    proto = prototype(op)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except ValueError:
        return _plain(proto, fn, on)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    attributes = [p for p in positional[len(proto.inputs) :] if p.name in proto.attr_by_name]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not attributes and not takes_any:
        return describe(op, fn, on)
    rest = [p for p in positional if p not in attributes]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if takes_any:
        known = {p.name for p in (*attributes, *keywords)}
        named = [row.name for row in proto.attrs if row.name not in known and row.name.isidentifier()]
        keywords += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in named]
    shown = [p.replace(kind=p.KEYWORD_ONLY) for p in (*attributes, *keywords)]
    return describe(op, fn, on, inspect.Signature([*rest, *shown]))


def _plain(proto: Prototype, fn: Fn, on: str | None) -> Kernel:
    if proto.attrs:
        raise BadKernel(
            f"{getattr(fn, '__name__', fn)} does not tell its parameters, and {proto.name} has attributes",
            near=str(proto),
            next="wrap it: lambda x, *, k: fn(x, k)",
        )
    return Kernel(proto.name, fn, on, None, (ParamKind.TENSOR,) * len(proto.inputs), (), wants_device=False)
