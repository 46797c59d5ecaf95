"""copy_(input, f(input, …)) -> f_(input, …): a new value of an input is written where the input is.

A KV cache update then writes only its few rows. An input that the graph does not write back is never written.
"""

from __future__ import annotations

import torch
from torch import fx

from torchair.passes.fx.analysis.alias_analysis import is_same_view
from torchair.passes.fx.analysis.auto_functionalized import annotate, is_functionalized
from torchair.passes.fx.analysis.inplace_analysis import InPlace
from torchair.passes.fx.analysis.inplace_variants import overwrite_several, plan_of
from torchair.passes.pass_manager import PassContext

aten = torch.ops.aten


def reinplace_input_mutated_ops(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Rewrite write-backs in graph order, and ops that update several tensors.

    Also annotate higher-order nodes with the tensors that need no clone.
    """
    work, changed = InPlace(gm, ctx), 0
    for node in list(gm.graph.nodes):
        if is_functionalized(node):
            changed += annotate(work, node)
            continue
        plan = plan_of(node)
        if plan is not None:
            changed += overwrite_several(work, node, plan, inputs=True)
    for copy in list(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)):
        if _is_write_back(work, copy):
            changed += work.write_back(copy)
    if changed:
        work.finish()
    return changed


def _is_write_back(work: InPlace, copy: fx.Node) -> bool:
    """Return whether the copy writes into an input, a constant, or a part of one.

    `eliminate_self_copy` handles a copy of a value over itself.
    """
    target, value = copy.args[0], copy.args[1]
    is_input = isinstance(target, fx.Node) and work.memory.has_input(target)
    return is_input and not is_same_view(target, value)
