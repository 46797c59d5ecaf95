"""b = op(a) -> op_(a), where nothing reads the old value of the intermediate `a` any more."""

from __future__ import annotations

from torch import fx

from torchair.core.errors import first_line
from torchair.fxgraph.edit import copy_graph
from torchair.passes.fx.analysis.inplace_analysis import InPlace
from torchair.passes.fx.analysis.inplace_variants import overwrite_several, plan_of
from torchair.passes.pass_manager import PassContext


def reinplace_inplaceable_ops_pass(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Reinplace ops with an in-place variant, scatters, and registered ops that update several tensors.

    The pass only saves memory: when it fails, the graph is unchanged.
    """
    saved = copy_graph(gm)
    try:
        return _reinplace(gm, ctx)
    except NotImplementedError:
        raise
    except Exception as error:
        ctx.degradations.add(
            f"intermediates are not written in place: the pass failed with {type(error).__name__}: "
            f"{first_line(error)}",
            next="set inplace_pass=False to skip the pass; results are the same",
        )
        gm.graph = saved.graph
        return 0


def _reinplace(gm: fx.GraphModule, ctx: PassContext) -> int:
    work, changed = InPlace(gm, ctx), 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        plan = plan_of(node)
        changed += work.overwrite(node) if plan is None else overwrite_several(work, node, plan, inputs=False)
    if changed:
        work.finish()
    return changed
