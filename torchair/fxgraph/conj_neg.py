"""Results that are conjugated or negated only when they are read, by a mark on the tensor.

The IR has values, and no marks: there a marked result would become a tensor of its own, which shares no
memory with the one it looks at. So the graph returns the elements as they lie, and the marks are put on
afterwards.
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
    """Return unmarked tensors; the calls that mark them again, by the place among the results. Views of
    inputs stay as they are: they are views of the input of each call anyway.
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
    """The places of marked tensors."""
    return tuple(
        place
        for place, value in enumerate(args)
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())
    )


def unmarked(value: torch.Tensor) -> torch.Tensor:
    """A copy without marks that lies like the value."""
    layout = layout_of(value)
    (made,) = materialize_layout([value.resolve_conj().resolve_neg()], [layout])
    return made


def _marks(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(mark for mark, is_on in zip(MARKS, (value.is_conj(), value.is_neg()), strict=True) if is_on)


def _unmarked(node: fx.Node) -> fx.Node | None:
    """The same view of the same memory without marks; None where that cannot be told."""
    if not _marks(node):
        return node if node.op == "call_function" else None
    viewed = viewed_by(node)
    if viewed is None or viewed[1] is None:
        return None
    source, value = viewed[0], node.meta["val"]
    if source.meta["val"].dtype != value.dtype:
        return None
    if node.target in MARKS:
        # A mark that is put on, not one taken off.
        return _unmarked(source) if len(_marks(source)) < len(_marks(node)) else None
    plain = _unmarked(source)
    if plain is None:
        return None
    if viewed[1].item is None:
        return _again(node, {source: plain})
    call: Any = node.args[0]
    return _again(node, {call: _again(call, {source: plain})})


def _again(node: fx.Node, instead: dict[fx.Node, fx.Node]) -> fx.Node:
    """The same call, of other arguments."""
    with node.graph.inserting_before(node):
        made = node.graph.node_copy(node, lambda n: instead.get(n, n))
    args, kwargs = map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
    (first,) = instead.values()
    with _mode_of(first.meta["val"]):
        made.meta["val"] = made.target(*args, **kwargs)  # type: ignore[operator]
    return made


def _mode_of(value: Any) -> Any:
    """The fake mode of a value, or of the first of several."""
    return (value[0] if isinstance(value, list | tuple) else value).fake_mode
