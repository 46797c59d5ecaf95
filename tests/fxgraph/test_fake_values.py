"""Fake values follow changes of their graph."""

from __future__ import annotations

import torch

from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.fxgraph.fake_values import look_again
from torchair.fxgraph.layout import layouts_of

aten = torch.ops.aten


def test_views_follow_the_value_they_look_at() -> None:
    gm = make_fx(lambda x: [x.clone()[1:].t()], tracing_mode="fake")(torch.randn(3, 2))
    (clone,) = gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    clone.replace_all_uses_with(clone.args[0])
    gm.graph.erase_node(clone)
    assert layouts_of(gm)[0].base is None  # type: ignore[union-attr]
    look_again(gm.graph, gm.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode)
    assert layouts_of(gm)[0].base == 0  # type: ignore[union-attr]
