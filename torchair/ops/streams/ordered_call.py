"""Define `torchair::in_turn`: a call with side effects, expressed as a write into a tensor.

Compilers preserve only the order of reads and writes of a tensor. Calls that print or save become writes into
one tensor, whose content is never used.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.operators.schemas import find_overload
from torchair.ops.io import print_tensor, save_tensor

OPS = print_tensor.OPS | save_tensor.OPS
"""Calls with side effects on the host that write no tensor."""


@torch.library.custom_op("torchair::in_turn", mutates_args=("turn",))
def in_turn(turn: torch.Tensor, tensors: list[torch.Tensor], call: str) -> None:
    """Run the call that `packed` has encoded, with these tensors."""
    name, args, kwargs = json.loads(call)
    op = find_overload(name)
    assert op is not None, f"the operator {name} existed when this was compiled"

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        return tensors[value["x"]] if isinstance(value, dict) else value

    op(*decode(args), **{key: decode(value) for key, value in kwargs.items()})


@in_turn.register_fake
def _(turn: torch.Tensor, tensors: list[torch.Tensor], call: str) -> None:
    return None


def packed(node: fx.Node) -> tuple[list[fx.Node], str]:
    """Return the tensors of a call, and its encoded other arguments."""
    places = {source: place for place, source in enumerate(node.all_input_nodes)}

    def encode(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [encode(item) for item in value]
        return {"x": places[value]} if isinstance(value, fx.Node) else value

    kwargs = {key: encode(value) for key, value in node.kwargs.items()}
    return list(places), json.dumps([str(node.target), encode(node.args), kwargs])


def take_turns(graph: fx.Graph) -> int:
    """Turn calls with side effects into writes into one tensor; returns their number."""
    calls = [node for node in graph.nodes if node.target in OPS]
    if not calls:
        return 0
    options = {"dtype": torch.uint8, "device": torch.device("cpu")}
    with graph.inserting_before(calls[0]):
        turn = graph.call_function(torch.ops.aten.empty.memory_format, ([1],), options)
    with calls[0].all_input_nodes[0].meta["val"].fake_mode:
        turn.meta["val"] = torch.empty([1], **options)
    for node in calls:
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.torchair.in_turn.default, (turn, *packed(node)))
        made.meta = {"val": None, "stack_trace": node.meta.get("stack_trace")}
        graph.erase_node(node)
    return len(calls)
