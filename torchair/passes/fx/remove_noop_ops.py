"""x.clone(), a slice of everything, a cast to the same dtype … -> x"""

from __future__ import annotations

from torch import fx

from torchair.core.torch_private import detect_fake_mode, remove_noops
from torchair.passes.run import PassContext


def remove_noop_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Inductor's own list of no-ops. Kept where the graph would come to return one of its inputs, or one
    tensor twice.
    """
    before = len(gm.graph.nodes)
    remove_noops(gm, detect_fake_mode(ctx.inputs))
    gm.recompile()
    return before - len(gm.graph.nodes)
