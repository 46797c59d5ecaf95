"""Graph rewrites that are faster on the CPU and that Inductor does not make itself."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from torchair.codegen.base.graph_prep import VIEWS, add_call, row_source
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.fxgraph.fake_values import is_on_cpu

aten = torch.ops.aten


def add_bias_later(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> int:
    """addmm(bias, a, b) -> mm(a, b) + bias.

    On the CPU `addmm` first copies the bias into the whole result. The sum is free in a kernel that reads the
    product anyway, and cheaper than the copy otherwise. Only for float32: a narrower type would round the
    product once more. The sum has one more dimension, because Inductor rewrites a plain mm + bias to addmm.
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

    Inductor gives the view of a single row the stride 0, and `mm` first copies an operand with that stride
    (2.7 us of 8.1 for a row of 128). Only if an op computed the row x, because its memory is then contiguous.
    """
    changed = 0
    if fake_mode is None:
        return changed
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.mm.default)):
        view = node.args[0]
        source = row_source(view) if isinstance(view, fx.Node) and view.target in VIEWS else None
        if source is None or not is_on_cpu(source.meta["val"]):
            continue
        length = view.meta["val"].shape[1]
        with gm.graph.inserting_before(node):
            shape, strides = [1, length], [length, 1]
            row = add_call(gm.graph, fake_mode, aten.as_strided.default, source, shape, strides)
        node.replace_input_with(view, row)
        if not view.users:
            gm.graph.erase_node(view)
        changed += 1
    if changed:
        gm.recompile()
    return changed
