"""Bind ops that nothing here can run: the torch op of the FX node runs, and the ops stay for other
engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from torchair.convert.special.auto_functionalized import WRAPPERS
from torchair.core.errors import UnsupportedOp
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import flat
from torchair.ge.builder.torch_kernel_binding import CALL, TorchCall, hold
from torchair.ge.graph import Op, Tensor
from torchair.ge.prototype import catalogue


def unvalued(result: Any, meta: Any) -> dict[Tensor, int]:
    """Map the results of a converter that have no value yet to the index of the call's value.

    Results of sub-graphs have the values of FX.
    """
    pairs = [(made, want) for made, want in zip(flat(result), flat(meta), strict=False) if want is not None]
    return {
        made: place
        for place, (made, _) in enumerate(pairs)
        if isinstance(made, Tensor) and made.meta is None and not made.op.subgraphs
    }


def run_by_torch(
    node: fx.Node,
    ops: Sequence[Op],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    unknown: Mapping[Tensor, int],
) -> None:
    """Run the node's call in place of its ops, if some of them have no value."""
    wanted = [want for want in flat(node.meta.get("val")) if want is not None]
    acts_only = [op for op in ops if not wanted and _is_unknown(op)]
    if not unknown and not acts_only:
        _drop_requested_calls(ops)
        return
    target: Any = node.target
    if not isinstance(target, OpOverload) and target not in WRAPPERS:
        lacking = ", ".join(dict.fromkeys(op.type for op in ops if _is_unknown(op)))
        raise UnsupportedOp(
            f"the IR op {lacking} has no kernel, and {target} is not a torch op that could run in its place"
        )
    hold(acts_only if not unknown else ops, TorchCall(target, args, kwargs), unknown)
    _drop_requested_calls(ops)


def _is_unknown(op: Op) -> bool:
    """Return whether the op has no value, or is a user's op that returns nothing."""
    if op.subgraphs:
        return False
    if op.outputs:
        return any(output.meta is None for output in op.outputs)
    return not catalogue().is_builtin(op.type)


def _drop_requested_calls(ops: Sequence[Op]) -> None:
    """Remove requested calls, which are now part of the whole node's call."""
    for op in ops:
        if CALL in op.attrs and not op.attrs[CALL].value:
            del op.attrs[CALL]


__all__ = ["run_by_torch", "unvalued"]
