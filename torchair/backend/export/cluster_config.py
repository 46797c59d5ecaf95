"""JSON templates for graphs that several devices run together: which device runs which graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchair.core.torch_private.operators.schemas import process_group
from torchair.ge.graph import Graph

GROUP = "group"


def groups_of(graph: Graph) -> dict[str, list[int]]:
    """Return the process groups that ops of a graph use, with their ranks."""
    named = [op.attrs[GROUP].value for op in graph.ops if GROUP in op.attrs]
    names = [name for name in dict.fromkeys(named) if isinstance(name, str) and name]
    return {name: _ranks(name) for name in names}


def _ranks(name: str) -> list[int]:
    return torch.distributed.get_process_group_ranks(process_group(name))


def cluster_files(name: str, ranks: Sequence[int], groups: Mapping[str, list[int]]) -> dict[str, str]:
    """Return both files by name. Users fill in the addresses of the nodes."""
    models = [f"{name}{rank}.air" for rank in ranks]
    pairs = list(zip(models, ranks, strict=True))
    relation = {
        "deploy_config": [
            {"submodel_name": model, "deploy_device_id_list": f"0:0:{rank}"} for model, rank in pairs
        ],
        "model_name_to_instance_id": [
            {"submodel_name": model, "model_instance_id": rank} for model, rank in pairs
        ],
        "comm_group": [
            {"group_name": group, "group_rank_list": str(members)} for group, members in groups.items()
        ],
        "rank_table": [{"rank_id": rank, "model_instance_id": rank} for rank in ranks],
    }
    node = {
        "node_id": 0,
        "node_type": "ATLAS800",
        "ipaddr": "127.0.0.1",
        "port": 29500,
        "item_list": [{"item_id": rank} for rank in ranks],
    }
    item = {"item_type": "Ascend910"}
    numa = {
        "cluster": [{"cluster_nodes": [node], "nodes_toplogy": {}}],
        "item_def": [item],
        "node_def": [{"item": [item]}],
    }
    return {"model_relation_config.json": _text(relation), "numa_config.json": _text(numa)}


def _text(content: Any) -> str:
    return json.dumps(content, indent=4)
