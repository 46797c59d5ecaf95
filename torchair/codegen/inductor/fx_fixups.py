"""Rewrites of a whole graph before code generation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchair.codegen.base.graph_prep import keep_copy
from torchair.codegen.inductor import cpu_fixups
from torchair.codegen.inductor.gemv import fix_windows
from torchair.core.torch_private.compilers.inductor import joint_graph_passes
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode
from torchair.fxgraph.effects import makes_views
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.placeholders import output, returned
from torchair.fxgraph.symbols import equal

aten = torch.ops.aten


def apply_fixups(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> fx.GraphModule:
    """Run Inductor's passes and torchair's fix-ups. Outputs keep their strides."""
    known = set(gm.graph.nodes)
    required = [value.meta.get("val") if isinstance(value, fx.Node) else None for value in returned(gm)]
    gm = joint_graph_passes(gm, device_of(gm))
    _keep_layouts(gm, required, known)
    fix_windows(gm, fake_mode)
    cpu_fixups.add_bias_later(gm, fake_mode)
    cpu_fixups.give_rows_their_stride(gm, fake_mode)
    return gm


def _keep_layouts(gm: fx.GraphModule, required: list[Any], known: Collection[fx.Node]) -> None:
    """Copy values whose layout a pass has changed, for users that depend on it: views and outputs. (On CUDA a
    pass may compute a wider matrix product if that measures faster, and return a view of it.)
    """
    end, changed = output(gm), False
    outputs = {
        node: value.stride()
        for node, value in zip(returned(gm), required, strict=True)
        if isinstance(node, fx.Node) and isinstance(value, torch.Tensor)
    }
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if node in known or not isinstance(value, torch.Tensor) or value.is_contiguous():
            continue
        readers = [user for user in node.users if user in known and makes_views(user.target)]
        readers = [user for user in readers if not _keeps_strides(user)]
        if node in outputs and not all(map(equal, value.stride(), outputs[node])):
            readers.append(end)
        if readers:
            with gm.graph.inserting_before(node.next):
                copy = keep_copy(node)
            for user in readers:
                user.replace_input_with(node, copy)
            changed = True
    if changed:
        gm.recompile()


def _keeps_strides(view: fx.Node) -> bool:
    """Return whether a view still has its recorded strides. An `as_strided` depends on the layout of its
    input.
    """
    value = view.meta["val"]
    if not isinstance(value, torch.Tensor) or view.target is aten.as_strided.default:
        return False
    try:
        with value.fake_mode:  # type: ignore[attr-defined]
            found = view.target(*fx.map_arg(view.args, lambda inner: inner.meta["val"]), **view.kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError):  # no such view is possible any more
        return False
    return all(map(equal, found.stride(), value.stride()))
