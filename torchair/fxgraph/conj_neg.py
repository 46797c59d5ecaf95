"""Results with the conjugate or negative bit, which are conjugated or negated only when they are read.

The IR has values without these bits. There, such a result would become a new tensor that shares no memory
with the tensor it views. So the graph returns the elements as they are, and the bits are set afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.fxgraph.layout import layout_of, materialize_layout, viewed_by

aten = torch.ops.aten
MARKS: tuple[Any, ...] = (aten._conj.default, aten._neg_view.default)


def take_marks_off(gm: fx.GraphModule) -> dict[int, tuple[Any, ...]]:
    """Make the graph return tensors without these bits. Return the calls that set the bits again, by output
    index. Views of inputs are not changed, because they are created from the input of each call.
    """
    taken: dict[int, tuple[Any, ...]] = {}
    output = gm.graph.output_node()
    returned: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for place, node in enumerate(returned):
        marks = _marks(node)
        plain = _unmarked(node) if marks else None
        if plain is not None:
            taken[place], returned[place] = marks, plain
    output.args = (tuple(returned),)
    return taken


def marked_arguments(args: Sequence[Any]) -> tuple[int, ...]:
    """Return the indices of tensors with one of these bits."""
    return tuple(
        place
        for place, value in enumerate(args)
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())
    )


def unmarked(value: torch.Tensor) -> torch.Tensor:
    """Return a resolved copy with the same layout."""
    layout = layout_of(value)
    (made,) = materialize_layout([value.resolve_conj().resolve_neg()], [layout])
    return made


def _marks(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(mark for mark, is_on in zip(MARKS, (value.is_conj(), value.is_neg()), strict=True) if is_on)


def _unmarked(node: fx.Node) -> fx.Node | None:
    """Return the same view of the same memory without these bits, or None if there is none."""
    if not _marks(node):
        return node if node.op == "call_function" else None
    viewed = viewed_by(node)
    if viewed is None or viewed[1] is None:
        return None
    source, value = viewed[0], node.meta["val"]
    if source.meta["val"].dtype != value.dtype:
        return None
    if node.target in MARKS:
        # The call sets a bit; it does not clear one.
        return _unmarked(source) if len(_marks(source)) < len(_marks(node)) else None
    plain = _unmarked(source)
    if plain is None:
        return None
    if viewed[1].item is None:
        return _again(node, {source: plain})
    call: Any = node.args[0]
    return _again(node, {call: _again(call, {source: plain})})


def _again(node: fx.Node, instead: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return a copy of the call with other arguments."""
    with node.graph.inserting_before(node):
        made = node.graph.node_copy(node, lambda n: instead.get(n, n))
    args, kwargs = map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
    (first,) = instead.values()
    with _mode_of(first.meta["val"]):
        made.meta["val"] = made.target(*args, **kwargs)  # type: ignore[operator]
    return made


def _mode_of(value: Any) -> Any:
    """Return the fake mode of a value, or of the first of several values."""
    return (value[0] if isinstance(value, list | tuple) else value).fake_mode
