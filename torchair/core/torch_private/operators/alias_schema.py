"""Operators with extended alias annotations, for calls whose read-only arguments share memory with written
ones.

AOTAutograd passes an operator copies of the arguments it writes, and the other arguments unchanged. Such a
read-only argument would keep its old values during the call. The same operator, with a schema that also
writes this argument, gets both from one copy, as in eager mode.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import can_auto_functionalize

from torchair.core.torch_private.operators.schemas import OpOverload, find_overload, has_kernel, register_fake

__all__ = ["SPACE", "can_auto_functionalize", "find_shared", "original_of", "with_shared"]

SPACE, AND = "torchair_shared", "__and__"
"""Naming scheme: `lib::op.default` that also writes `x` is
`torchair_shared::lib__and__op__and__default__and__x`.
"""
_KEYS = ("CompositeExplicitAutograd", "CPU", "CUDA", "PrivateUse1")
_library = torch.library.Library(SPACE, "DEF")
_defined: Any = getattr(torch.ops, SPACE)
_originals: dict[OpOverload, tuple[str, str, tuple[str, ...]]] = {}
"""Name and schema of each original, which may be redefined, and the arguments that it only reads."""
_defining = threading.RLock()
_beginning: set[str] = set()
"""Operators that are being defined; torch asks for them meanwhile."""


def original_of(op: OpOverload) -> tuple[OpOverload, tuple[str, ...]]:
    """Return the original operator, and the arguments that it only reads."""
    if op not in _originals:
        return op, ()
    name, _, names = _originals[op]
    return find_overload(name) or op, names


def with_shared(op: OpOverload, names: Sequence[str]) -> OpOverload | None:
    """Return the operator that also writes these arguments; None if the names would be ambiguous."""
    parts = (*op._schema.name.split("::"), op._overloadname, *names)
    if any(AND in part for part in parts):
        return None
    with _defining:
        for number in itertools.count():  # a redefined operator may have other arguments
            name = AND.join((*parts, str(number)) if number else parts)
            packet = getattr(_defined, name, None) or _define(op, names, name)
            if _originals[packet.default][1] == str(op._schema):
                return packet.default
    raise AssertionError("itertools.count() is infinite")


def find_shared(name: str) -> OpOverload | None:
    """Return the operator with this name. The name may come from a file or code of another process."""
    parts = [part for part in name.split(AND) if not part.isdecimal()]
    op = find_overload(".".join(parts[:3])) if len(parts) > 3 else None
    if op is None or not can_auto_functionalize(op):
        return None
    known = {argument.name for argument in op._schema.arguments}
    return with_shared(op, parts[3:]) if known.issuperset(parts[3:]) else None


def _define(op: OpOverload, names: Sequence[str], qualified: str) -> Any:
    _, _, rest = str(op._schema).partition("(")
    for each in names:
        rest = re.sub(rf"\bTensor(\??) {each}\b", rf"Tensor(shared_{each}!)\1 {each}", rest, count=1)
    _beginning.add(qualified)
    try:
        _library.define(f"{qualified}({rest}", tags=tuple(op.tags))
    finally:
        _beginning.discard(qualified)
    name = str(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        current = find_overload(name)
        assert current is not None, "the caller had this operator"
        return current(*args, **kwargs)

    for key in _KEYS:
        if has_kernel(op, key):
            _library.impl(qualified, run, key)
    register_fake(_library, qualified, run)
    made = getattr(_defined, qualified)
    _originals[made.default] = (name, str(op._schema), tuple(names))
    return made


class _Space:
    """`torch.ops.torchair_shared`, which also defines operators that code of another process calls."""

    def __getattr__(self, name: str) -> Any:
        with _defining:
            if name not in _beginning and not hasattr(_defined, name):
                find_shared(name)
            return getattr(_defined, name)


setattr(torch.ops, SPACE, _Space())
