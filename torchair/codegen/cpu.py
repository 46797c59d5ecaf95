"""What pays on the CPU and Inductor does not do there by itself."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from torchair.codegen.graph import add_call
from torchair.core.torch_private.fake import FakeTensorMode
from torchair.core.torch_private.ops import OpOverload

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def add_bias_later(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> int:
    """addmm(bias, a, b) -> mm(a, b) + bias.

    On the CPU `addmm` first copies the bias into the whole result; the sum costs nothing in the kernel that
    reads the product anyway, and less than the copy where none does. Only for float32: in a narrower type the
    product would be rounded once more. The sum is written with one dim more, because Inductor turns a plain
    mm + bias back into addmm.
    """
    changed = 0
    if fake_mode is None:
        return changed
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.addmm.default)):
        if node.kwargs or not _worth_it(node):
            continue
        bias, a, b = node.args
        with gm.graph.inserting_before(node):
            call = partial(add_call, gm.graph, fake_mode)
            product = call(aten.mm.default, a, b)
            total = call(aten.add.Tensor, call(aten.unsqueeze.default, product, 0), bias)
            result = call(aten.squeeze.dim, total, 0)
        result.meta = {**node.meta, "val": result.meta["val"]}
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def _worth_it(node: fx.Node) -> bool:
    value, bias = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
    return value.device.type == "cpu" and value.dtype == torch.float32 and bias.ndim == 1


def give_rows_their_stride(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> int:
    """mm(view(x, [1, n]), w) -> mm(as_strided(x, [1, n], [n, 1]), w).

    Inductor writes the view of a single row with stride 0, and `mm` copies an operand of that stride first
    (2.7 us of 8.1 for a row of 128). Only where x is a row that some op computed: its memory is one piece.
    """
    changed = 0
    if fake_mode is None:
        return changed
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.mm.default)):
        view = node.args[0]
        if not isinstance(view, fx.Node) or not _is_view_of_computed_row(view):
            continue
        length = view.meta["val"].shape[1]
        with gm.graph.inserting_before(node):
            shape, strides = [1, length], [length, 1]
            row = add_call(gm.graph, fake_mode, aten.as_strided.default, view.args[0], shape, strides)
        node.replace_input_with(view, row)
        if not view.users:
            gm.graph.erase_node(view)
        changed += 1
    if changed:
        gm.recompile()
    return changed


def _is_view_of_computed_row(view: fx.Node) -> bool:
    source = view.args[0] if view.target in VIEWS else None
    if not isinstance(source, fx.Node) or not isinstance(source.target, OpOverload):
        return False
    value, shape = view.meta["val"], source.meta["val"].shape
    if value.device.type != "cpu" or not all(isinstance(size, int) for size in (*value.shape, *shape)):
        return False
    is_row = value.shape[0] == 1 and [size for size in shape if size != 1] == [value.shape[1]]
    return is_row and torch.Tag.pointwise in source.target.tags
