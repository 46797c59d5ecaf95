"""Check the results of a converter against those of FX."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadConverter
from torchair.core.source_location import source_of
from torchair.core.torch_private.fake.fake_tensors import is_unbacked
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import flat
from torchair.ge.attr import Str
from torchair.ge.graph import INPUT_TYPES, Tensor, describe
from torchair.ge.host import Host, is_symbol


def target_name(target: Any) -> str:
    """Return the name of a node's target."""
    if isinstance(target, OpOverload):
        return str(target)
    return getattr(target, "__name__", None) or str(target)


def used(node: fx.Node, meta: Any) -> list[bool]:
    """Return which of several results are read; a converter may return None for the others."""
    users = [user for user in node.users if user.users or user.target is not operator.getitem]
    read = [user.args[1] if user.target is operator.getitem else None for user in users]
    return [None in read or index in read for index in range(len(meta))]


def check_results(node: fx.Node, result: Any, meta: Any) -> None:
    """Check number, dtype and shape of the converter's results.

    Afterwards the IR tensors have FX's own values.
    """
    expected, made = list(flat(meta)), list(flat(result))
    if len(expected) != len(made):
        raise BadConverter(
            f"the converter of {node.target} returned {len(made)} values, but the op returns {len(expected)}",
            at=source_of(node),
            got=", ".join(_shown(value) for value in made),
            near=", ".join(describe(value) for value in expected),
        )
    for number, (value, want, is_read) in enumerate(zip(made, expected, _read(node, meta), strict=True)):
        if isinstance(value, Tensor) and isinstance(want, torch.Tensor):
            _check_tensor(node, value, want)
            # The name by which dumps of the FX graph and of the IR are matched.
            name = f"{node.name}-{target_name(node.target)}.OUTPUT.{number}"
            value.desc.attrs.setdefault("_fx_tensor_name", Str(name))
        elif isinstance(value, Tensor) and isinstance(value.meta, torch.Tensor) and is_symbol(want):
            value.meta = Host(want, value.meta.dtype)
        elif isinstance(want, torch.Tensor) and not isinstance(value, torch.Tensor) and is_read:
            raise BadConverter(
                f"the converter of {node.target} must return a tensor of the graph where the op returns a "
                "tensor",
                at=source_of(node),
                got=_shown(value),
                near=describe(want),
            )


def _read(node: fx.Node, meta: Any) -> list[bool]:
    """Return, for each value inside the results, whether it is read."""
    if not isinstance(meta, list | tuple):
        return [bool(node.users)]
    parts = zip(used(node, meta), meta, strict=True)
    return [is_read for is_read, part in parts for _ in flat(part)]


def _check_tensor(node: fx.Node, value: Tensor, want: torch.Tensor) -> None:
    if value.meta is None:
        value.meta = want
        return
    same_shape = len(value.meta.shape) == want.ndim and all(map(_may_equal, value.meta.shape, want.shape))
    if value.meta.dtype != want.dtype or not same_shape:
        raise BadConverter(
            f"the converter of {node.target} returned {describe(value.meta)}, but the op returns "
            f"{describe(want)}",
            at=source_of(node),
            got=f"IR op {value.op.name} ({value.op.type})",
        )
    # The meta of an input has the layout of the caller's tensor, for all readers.
    if not isinstance(value.meta, Host) and value.op.type not in INPUT_TYPES:
        value.meta = want


def _may_equal(a: Any, b: Any) -> bool:
    """Return whether sizes are equal; data-dependent symbols are renamed by tracing, so they match any."""
    if is_unbacked(a) or is_unbacked(b):
        return True
    if is_symbol(a) and is_symbol(b) and a.node.expr == b.node.expr:
        return True
    a_hint = a.node.hint if is_symbol(a) else a
    b_hint = b.node.hint if is_symbol(b) else b
    return a_hint == b_hint


def _shown(value: Any) -> str:
    return describe(value.meta) if isinstance(value, Tensor) else repr(value)
