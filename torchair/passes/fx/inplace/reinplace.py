"""b = op(a) -> op_(a), where nobody reads the old value of the intermediate `a` any more."""

from __future__ import annotations

from torch import fx

from torchair.core.errors import first_line
from torchair.fxgraph.edit import copy_graph
from torchair.passes.fx.analysis.inplace_analysis import InPlace
from torchair.passes.fx.analysis.inplace_variants import overwrite_several, plan_of
from torchair.passes.pass_manager import PassContext


def reinplace_inplaceable_ops_pass(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Ops with an in-place twin, scatters, and ops of the registry that update several tensors.

    It only saves memory: when it fails, the graph stays as it was.
    """
    saved = copy_graph(gm)
    try:
        return _reinplace(gm, ctx)
    except NotImplementedError:
        raise
    except Exception as error:
        ctx.degradations.add(
            f"values are not written in place: {type(error).__name__}: {first_line(error)}",
            next="inplace_pass=False switches the attempt off",
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
