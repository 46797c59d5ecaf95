"""Fix the memory layout of the results of a replacement.

A fused op often returns contiguous rows where the chain returned a transposed view. Most ops accept both, but
readers of graph results and ops that depend on memory layout do not. There a copy gives a replacement the
strides of the chain. The same applies to a result that was new memory and would now be an argument itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, tree_leaves
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import makes_views
from torchair.fxgraph.layout import root_of, stride_order
from torchair.fxgraph.symbols import equal

aten = torch.ops.aten


def stride_conflict(match: Any, captures: bool) -> str | None:
    """Add copies to the replacement where its results need the layout of the pattern's results.

    Return the reason if that is not possible. In graph mode (`captures` is false) graph results are copied to
    their layout anyway.
    """
    old = [node for node in match.output_nodes() if node is not None]
    gm: fx.GraphModule = match.replacement_graph
    new = tree_leaves(gm.graph.output_node().args[0])
    pairs = [(a, b) for a, b in zip(old, new, strict=False) if _is_tensor(a) and _is_tensor(b)]
    other = {a: b.meta["val"] for a, b in pairs if not _same_layout(a.meta["val"], b.meta["val"])}
    shown = other.keys() if other and is_seen(other, set(match.nodes), captures) else ()
    for a, b in pairs:
        if a in shown:
            if (copied := _arranged(gm, b, a.meta["val"])) is None:
                steps = (tuple(node.meta["val"].stride()) for node in (a, b))
                return "its result has strides {}, but the replacement returns strides {}".format(*steps)
            _return_instead(gm, b, copied)
        elif captures and _is_now_an_argument(match, a, b):
            _return_instead(gm, b, _call(gm, aten.clone.default, b))
    return None


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(map(equal, a.stride(), b.stride()))


# Which readers notice


def is_seen(changed: Mapping[fx.Node, torch.Tensor], inside: Collection[fx.Node], captures: bool) -> bool:
    """Return whether any reader would notice that these nodes have other strides.

    Readers `inside` the match do not count. The values are followed to graph results, to ops that are not
    torch's own and to ops that depend on memory layout.
    """
    values: dict[fx.Node, Any] = dict(changed)
    for node in next(iter(changed)).graph.nodes:
        if node in inside or not any(read in values for read in node.all_input_nodes):
            continue
        if node.op == "output":
            return captures
        if not _is_plain(node):
            return True
        result = _recomputed(node, values)
        if result is None:
            return True
        pairs = zip(tree_leaves(node.meta.get("val")), tree_leaves(result), strict=True)
        if not all(_same_layout(a, b) for a, b in pairs if isinstance(a, torch.Tensor)):
            values[node] = result
    return False


def _is_plain(node: fx.Node) -> bool:
    target = node.target
    is_aten = (
        isinstance(target, OpOverload) and target.namespace == "aten" and "as_strided" not in str(target)
    )
    return is_aten or getattr(target, "__module__", "") == "_operator"


def _recomputed(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """Recompute a call with these values, or return None. A view that is not possible becomes a copy."""
    target: Any = aten.reshape.default if node.target is aten.view.default else node.target
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: values.get(n, n.meta.get("val")))
    fake_mode = detect_fake_mode(tree_leaves([args, kwargs]))
    if fake_mode is None:
        return None
    try:
        with fake_mode:
            return target(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError):
        return None


def _is_now_an_argument(match: Any, old: fx.Node, new: fx.Node) -> bool:
    """Return whether a graph result had its own memory and now shares that of an argument."""
    was_own = root_of(old)[0] in match.nodes
    return was_own and root_of(new)[0].op == "placeholder" and _is_returned(old)


def _is_returned(node: fx.Node) -> bool:
    return any(
        user.op == "output" or (makes_views(user.target) and _is_returned(user)) for user in node.users
    )


# Copies


def _arranged(gm: fx.GraphModule, node: fx.Node, like: torch.Tensor) -> fx.Node | None:
    """Return a copy with the layout of another tensor, if that is dense."""
    order = list(stride_order(like.shape, like.stride()))
    back = [order.index(dim) for dim in range(len(order))]
    turned = _call(gm, aten.permute.default, node, order)
    copied = _call(gm, aten.clone.default, turned, memory_format=torch.contiguous_format)
    result = _call(gm, aten.permute.default, copied, back)
    return result if _same_layout(result.meta["val"], like) else None


def _call(gm: fx.GraphModule, target: Any, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    with gm.graph.inserting_before(gm.graph.output_node()):
        result = gm.graph.call_function(target, (node, *args), kwargs)
    value = node.meta["val"]
    with value.fake_mode:
        result.meta["val"] = target(value, *args, **kwargs)
    return result


def _return_instead(gm: fx.GraphModule, old: fx.Node, new: fx.Node) -> None:
    output = gm.graph.output_node()
    swapped: Sequence[Any] = map_arg(output.args, lambda node: new if node is old else node)
    output.args = tuple(swapped)
    gm.recompile()
