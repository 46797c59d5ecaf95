"""attention(…, lengths=[s0, s1]) -> attention(…, lengths=Tensor input): numbers an op reads become data.

A recording fixes numbers, so every new length would need a new key. A device input that is filled before each
replay avoids that: one recording serves all lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.fxgraph.placeholders import placeholders
from torchair.passes.pass_manager import PassContext

# Op -> its variant that takes tensors, and the arguments that are lists in one and tensors in the other.
HOST_LISTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "npu.npu_fused_infer_attention_score.default": (
        "air.npu_fused_infer_attention_score.default",
        ("actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len"),
    ),
    "npu.npu_fused_infer_attention_score_v2.default": (
        "air.npu_fused_infer_attention_score_v2.default",
        ("actual_seq_qlen", "actual_seq_kvlen"),
    ),
}
MARK = "host_list"
"""Meta key of an input: for each element ("index", input) or ("fixed", number)."""

Rule = tuple[tuple[str, int], ...]


def move_host_lists(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Make each op whose lists hold graph inputs read new inputs instead, one for equal lists."""
    order = {node: index for index, node in enumerate(placeholders(gm))}
    results: dict[tuple[Rule, torch.device], fx.Node] = {}
    changed = 0
    for node in list(gm.graph.nodes):
        variant, names = (
            HOST_LISTS.get(str(node.target), ("", ())) if node.op == "call_function" else ("", ())
        )
        lists = {name: node.kwargs[name] for name in names if isinstance(node.kwargs.get(name), list | tuple)}
        if not any(isinstance(item, fx.Node) for items in lists.values() for item in items):
            continue
        rules = {name: _rule(items, order) for name, items in lists.items()}
        target = find_overload(variant)
        if target is None or None in rules.values():
            ctx.skip(node, "a length is computed in the graph, so it stays part of the key")
            continue
        device = node.args[0].meta["val"].device
        inputs = {name: _input(gm, rule, device, results) for name, rule in rules.items() if rule is not None}
        _replace(node, target, inputs)
        changed += 1
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed


def _rule(items: Sequence[Any], order: dict[fx.Node, int]) -> Rule | None:
    parts: list[tuple[str, int]] = []
    for item in items:
        if isinstance(item, int):
            parts.append(("fixed", item))
        elif item in order:
            parts.append(("index", order[item]))
        else:
            return None
    return tuple(parts)


def _input(
    gm: fx.GraphModule, rule: Rule, device: torch.device, made: dict[tuple[Rule, torch.device], fx.Node]
) -> fx.Node:
    known = made.get((rule, device))
    if known is not None:
        return known
    last = placeholders(gm)[-1]
    mode = next(
        mode
        for node in gm.graph.nodes
        if (mode := getattr(node.meta.get("val"), "fake_mode", None)) is not None
    )
    with gm.graph.inserting_after(last), mode:
        node = gm.graph.placeholder("host_list")
        node.meta |= {"val": torch.empty(len(rule), dtype=torch.int64, device=device), MARK: rule}
    made[rule, device] = node
    return node


def _replace(node: fx.Node, target: OpOverload, inputs: dict[str, fx.Node]) -> None:
    node.target = target
    node.kwargs = {**node.kwargs, **inputs}
