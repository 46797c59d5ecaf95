"""A program that writes what every node of its graph computes, on every call."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

SAVING = "save_npugraph_tensor"  # the user's own way to save a tensor: such a tensor is not saved twice


def rank_folder(root: str) -> Path:
    """`<root>/worldsize<W>_global_rank<R>` of this process."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    size, rank = (1, 0) if alone else (torch.distributed.get_world_size(), torch.distributed.get_rank())
    return Path(root) / f"worldsize{size}_global_rank{rank}"


class Dumping(fx.Interpreter):
    """Runs the graph node by node; subclasses say what is written, and where."""

    kind = "eager"

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.source = gm.code

    def __call__(self, args: list[Any]) -> list[Any]:
        mine = list(args)
        args.clear()
        with torch.no_grad():
            return list(self.run(*mine))


class TensorFiles(Dumping):
    """Every tensor as `<node>_device_<index>_<call>.pt`; on the CPU without the device."""

    def __init__(self, gm: fx.GraphModule, root: str) -> None:
        super().__init__(gm)
        self._folder = rank_folder(root)
        self._count: Counter[str] = Counter()
        self._saved_by_user = {
            source for node in gm.graph.nodes if SAVING in str(node.target) for source in node.all_input_nodes
        }

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op != "output" and n not in self._saved_by_user:
            self._save(n.name, value)
        return value

    def _save(self, name: str, value: torch.Tensor) -> None:
        where = "" if value.device.type == "cpu" else f"_device_{value.device.index or 0}"
        self._folder.mkdir(parents=True, exist_ok=True)
        torch.save(value.detach().cpu(), self._folder / f"{name}{where}_{self._count[name]}.pt")
        self._count[name] += 1


class ArrayFiles(Dumping):
    """Inputs and outputs of every op as `.npy`, one folder per call."""

    def __init__(self, gm: fx.GraphModule, root: str, graph: str) -> None:
        super().__init__(gm)
        self._folder = rank_folder(root) / graph
        self._step = -1

    def __call__(self, args: list[Any]) -> list[Any]:
        self._step += 1
        return super().__call__(args)

    def run_node(self, n: fx.Node) -> Any:
        inputs = [] if n.op != "call_function" else self.fetch_args_kwargs_from_env(n)[0]
        # Before the op: it may write into its inputs.
        if n.op == "call_function":
            self._save(n, "INPUT", inputs)
        value = super().run_node(n)
        if n.op == "call_function":
            self._save(n, "OUTPUT", value if isinstance(value, list | tuple) else (value,))
        return value

    def _save(self, node: fx.Node, what: str, values: Any) -> None:
        folder = self._folder / str(self._step)
        folder.mkdir(parents=True, exist_ok=True)
        target = re.sub(r"[^\w.]", "_", str(node.target))
        stamp = time.time_ns() // 1000
        for place, value in _tensors(values):
            np.save(folder / f"{node.name}-{target}.{what}.{place}.{stamp}.npy", _array(value))


def _tensors(values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor with its place: `0`, or `0.1` for the second tensor of a list."""
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield str(index), value
        elif isinstance(value, list | tuple):
            yield from ((f"{index}.{inner}", tensor) for inner, tensor in _tensors(value))


def _array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """numpy has no bfloat16: widened."""
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
