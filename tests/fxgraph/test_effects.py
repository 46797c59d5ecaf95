"""What ops do to memory."""

from __future__ import annotations

import torch
from torch._inductor.fx_passes import reinplace

from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import may_write

aten = torch.ops.aten


def test_what_inductor_lets_write_may_write() -> None:
    """Our list is ours, so that Inductor need not be loaded; it has all of Inductor's."""
    theirs = [*reinplace.inplaceable_ops, *reinplace.inplaceable_foreach_ops]
    ops = [op for op in theirs if isinstance(op, OpOverload)]
    assert aten.index_put.default in ops
    assert not [op for op in ops if not may_write(op)]


def test_others_do_not() -> None:
    assert may_write(aten.add_.Tensor)
    assert not may_write(aten.add.Tensor)
    assert not may_write(aten.index.Tensor)
