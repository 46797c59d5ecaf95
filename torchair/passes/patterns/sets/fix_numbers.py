"""Keep numbers in the graph that user replacements need."""

from __future__ import annotations

from typing import Any

from torch import fx

from torchair.core.torch_private.dynamo.float_inputs import floats_of_modules
from torchair.passes.pass_manager import PassContext
from torchair.passes.patterns.sets.registry import set_of


def fix_numbers(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Turn floats that modules store (an epsilon) from inputs back into numbers, where a rule takes numbers.

    Dynamo recompiles when such a number changes.
    """
    found = list(floats_of_modules(gm)) if set_of(ctx.config).takes_numbers else []
    for node, symbol in found:
        number: Any = float(symbol)  # this makes Dynamo add a guard
        node.replace_all_uses_with(number)
        gm.graph.erase_node(node)
    if found:
        gm.recompile()
    return len(found)
