"""Rewrite matrix-vector products as sums of products.

Such a product reads its matrix once and computes little. As a reduction it fuses with the ops before and
after it, and is one kernel where a library's split product is two. Inductor does the same, but only with its
search for block sizes, which takes long and pays off only for large matrices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from torchair.codegen.base.graph_prep import add_call, row_source
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode

aten, prims = torch.ops.aten, torch.ops.prims
WINDOW = "torchair_window"
"""Meta key of a node that reads a vector's memory with `as_strided`."""
PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
COMPUTED_AS = {torch.bfloat16: torch.float32, torch.float16: torch.float32} | {
    dtype: dtype for dtype in (torch.float32, torch.float64)
}


def rewrite_gemv(gm: fx.GraphModule, fake_mode: FakeTensorMode) -> int:
    """Rewrite products with a vector. Return the number of elements of their largest matrix, or 0 if there is
    none.
    """
    largest = 0
    for node in list(gm.graph.nodes):
        if node.target in PRODUCTS and _has_vector(node):
            largest = max(largest, *(factor.meta["val"].numel() for factor in _factors(node)))
            with gm.graph.inserting_before(node):
                made = _sum_of_products(node, partial(add_call, gm.graph, fake_mode))
            made.meta = {**node.meta, "val": made.meta["val"]}
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
    if largest:
        gm.recompile()
    return largest


def fix_windows(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> None:
    """Check the `as_strided` nodes after passes that remove ops without effect: their inputs may have another
    layout.
    """
    for node in list(gm.graph.nodes):
        if WINDOW in node.meta and fake_mode is not None and row_source(node.args[0]) is None:
            with gm.graph.inserting_before(node):
                view = add_call(gm.graph, fake_mode, aten.reshape.default, node.args[0], node.args[1])
            node.replace_all_uses_with(view)
            gm.graph.erase_node(node)


def _factors(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    return node.args[-2:]  # type: ignore[return-value]


def _has_vector(node: fx.Node) -> bool:
    value, (left, right) = node.meta["val"], (factor.meta["val"] for factor in _factors(node))
    sizes = (*left.shape, *right.shape)
    is_known = all(isinstance(size, int) for size in sizes)
    return is_known and value.dtype in COMPUTED_AS and value.is_contiguous() and 1 in value.shape[-2:]


def _in_memory(vector: fx.Node, call: Any) -> fx.Node:
    """Return the vector read from memory: Inductor would otherwise compute it again for every row of the
    matrix.
    """
    source, shape = row_source(vector), list(vector.meta["val"].shape)
    if source is None:
        return vector
    window = call(aten.as_strided.default, source, shape, [shape[-1], 1])
    window.meta[WINDOW] = True
    return window


def _sum_of_products(node: fx.Node, call: Any) -> fx.Node:
    """Return [..., m, k, 1] * [..., 1, k, n], summed over k."""
    value = node.meta["val"]
    dtype, rank = COMPUTED_AS[value.dtype], value.ndim

    def wide(factor: Any) -> fx.Node:
        return factor if dtype is value.dtype else call(prims.convert_element_type.default, factor, dtype)

    left, right = _factors(node)
    column = call(aten.unsqueeze.default, wide(_in_memory(left, call)), rank)
    matrix = call(aten.unsqueeze.default, wide(right), rank - 2)
    result = call(aten.sum.dim_IntList, call(aten.mul.Tensor, column, matrix), [rank - 1])
    options: dict[str, Any] = dict(node.kwargs)
    beta, alpha = options.get("beta", 1), options.get("alpha", 1)
    if alpha != 1:
        result = call(aten.mul.Tensor, result, alpha)
    if len(node.args) == 3 and beta != 0:
        bias = wide(node.args[0])
        result = call(aten.add.Tensor, result, bias if beta == 1 else call(aten.mul.Tensor, bias, beta))
    if dtype is not value.dtype:
        result = call(prims.convert_element_type.default, result, value.dtype)
    if not result.meta["val"].is_contiguous():
        result = call(aten.clone.default, result, memory_format=torch.contiguous_format)
    return result
