"""Register users' kernels for IR ops: `torchair.ge.register_kernel`."""

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
    """Define the meaning of an IR op by a function over torch tensors.

    The function runs on fake tensors to infer shapes, on real ones as the reference, and is traced to
    generate code. It replaces an existing kernel. Without `fn` this is a decorator.

    Args:
        op: Name of the IR op.
        fn: Function `fn(*inputs, **attributes)`. An optional input that is not connected is None, a list
            input is a list of tensors.
        on: Device type for which the kernel is used, such as "cuda"; None means all.

    Returns:
        `fn`, or a decorator if `fn` is None.

    Raises:
        BadKernel: The parameters of `fn` do not match the op.

    Example:
        @torchair.ge.register_kernel("Scale")
        def scale(x, *, factor):
            return x * factor
    """
    if not isinstance(op, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise BadKernel("register_kernel expects the name of an IR op as its first argument", got=repr(op))
    if fn is None:
        return lambda decorated: register_kernel(op, decorated, on=on)
    if not callable(fn):
        raise BadKernel(f"the kernel of {op} must be a function", got=repr(fn))
    if on is not None and not is_known(on):
        raise BadKernel(f"the kernel of {op} has an unknown device type", got=repr(on), near="cpu, cuda, npu")
    row = kernel_of(op, fn, on)
    if has_kernel(op):
        logger.info("the kernel of %s is replaced by %s", op, getattr(fn, "__qualname__", fn))
    set_kernel(row)
    extend(kernel_title(op, on), fn)
    return fn


def unregister_kernel(op: str, *, on: str | None = None) -> None:
    """Remove a user's kernel; the built-in one, if any, is used again."""
    restore_kernel(op, on)
    forget(kernel_title(op, on))


def kernel_of(op: str, fn: Fn, on: str | None = None) -> Kernel:
    """Create the registry entry of a user's kernel.

    Attributes may be keyword-only or come after the inputs, and `**attrs` takes all. A function without a
    signature, such as torch's own, takes all inputs in order.
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
            f"{getattr(fn, '__name__', fn)} has no readable signature, but {proto.name} has attributes",
            near=str(proto),
            next="wrap it: lambda x, *, k: fn(x, k)",
        )
    return Kernel(proto.name, fn, on, None, (ParamKind.TENSOR,) * len(proto.inputs), (), wants_device=False)
