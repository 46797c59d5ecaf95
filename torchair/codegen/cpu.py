"""What pays on the CPU and Inductor does not do there by itself."""

from __future__ import annotations

import torch
from torch import fx

from torchair.core import torch_private as private

aten = torch.ops.aten


def add_bias_later(gm: fx.GraphModule, fake_mode: private.FakeTensorMode | None) -> int:
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
            product = gm.graph.call_function(aten.mm.default, (a, b))
            lifted = gm.graph.call_function(aten.unsqueeze.default, (product, 0))
            total = gm.graph.call_function(aten.add.Tensor, (lifted, bias))
            result = gm.graph.call_function(aten.squeeze.dim, (total, 0))
        for made in (product, lifted, total, result):
            _evaluate(made, fake_mode)
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


def _evaluate(node: fx.Node, fake_mode: private.FakeTensorMode) -> None:
    args = fx.map_arg(node.args, lambda inner: inner.meta["val"])
    with private.faking(fake_mode), torch.no_grad():
        node.meta["val"] = node.target(*args)  # type: ignore[operator]
