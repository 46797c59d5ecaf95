"""Run an FX graph node by node and write the values of the nodes on every call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType
from torchair.core.fingerprint.atomic_files import atomic_write
from torchair.core.source_location import source_of
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload
from torchair.debug.dumps.files import WarnOnWriteError, make_folder, now, rank_folder

SAVING = "save_npugraph_tensor"  # the op with which users save a tensor; it is not saved twice


class DumpProgram(fx.Interpreter):
    """Run the graph node by node; subclasses define what is written, and where."""

    kind = "eager"

    def __init__(self, gm: fx.GraphModule, degradations: Diagnostics) -> None:
        super().__init__(gm)
        self.source = gm.code
        self._degradations = degradations

    def __call__(self, args: list[Any]) -> list[Any]:
        mine = list(args)
        args.clear()
        with torch.no_grad():
            return list(self.run(*mine))


class TensorFolder:
    """Write tensors as `<node>_device_<index>_<call>.pt`, without the device for CPU tensors."""

    def __init__(self, root: str, degradations: Diagnostics) -> None:
        self._folder = rank_folder(root)
        self._degradations = degradations
        self._count: Counter[str] = Counter()

    def save(self, name: str, value: torch.Tensor) -> None:
        """Write the value of a node in one call."""
        where = "" if value.device.type == "cpu" else f"_device_{value.device.index or 0}"
        with WarnOnWriteError(self._degradations, "a dumped tensor"):
            path = make_folder(self._folder) / f"{name}{where}_{self._count[name]}.pt"
            with atomic_write(path) as file:
                torch.save(value.detach().cpu(), file)
        self._count[name] += 1


def saved_by_user(gm: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes that user code saves."""
    saves = [node for node in gm.graph.nodes if SAVING in str(node.target)]
    return {source for node in saves for source in node.all_input_nodes}


class TensorFiles(DumpProgram):
    """Write every tensor to a `TensorFolder`."""

    def __init__(self, gm: fx.GraphModule, folder: TensorFolder, degradations: Diagnostics) -> None:
        super().__init__(gm, degradations)
        self._folder = folder
        self._left_out = saved_by_user(gm)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op != "output" and n not in self._left_out:
            self._folder.save(n.name, value)
        return value


class ArrayFiles(DumpProgram):
    """Write inputs and outputs of the selected nodes as `.npy`, one directory per run."""

    def __init__(
        self, gm: fx.GraphModule, folder: Path, selected: Collection[fx.Node], degradations: Diagnostics
    ) -> None:
        super().__init__(gm, degradations)
        self._folder = folder
        self._selected = selected
        self._step = -1

    def __call__(self, args: list[Any]) -> list[Any]:
        self._step += 1
        return super().__call__(args)

    def run_node(self, n: fx.Node) -> Any:
        if n not in self._selected:
            return super().run_node(n)
        target = re.sub(r"[^\w.]", "_", str(n.target))
        name, stamp = f"{n.name}-{target}", now()
        # Before the op runs, because it may write into its inputs.
        self._save(name, "INPUT", self.fetch_args_kwargs_from_env(n)[0], stamp)
        value = super().run_node(n)
        self._save(name, "OUTPUT", value if isinstance(value, list | tuple) else (value,), stamp)
        return value

    def _save(self, name: str, side: str, values: Any, stamp: str) -> None:
        with WarnOnWriteError(self._degradations, "a dumped array"):
            folder = make_folder(self._folder, str(self._step))
            for place, value in _leaves(values):
                save_array(folder / f"{name}.{side}.{place}.{stamp}.npy", value)


def calls(gm: fx.GraphModule) -> set[fx.Node]:
    """Return all calls of a graph."""
    return {node for node in gm.graph.nodes if node.op == "call_function"}


def chosen(gm: fx.GraphModule, choose: Callable[[fx.Node], Any] | None) -> set[fx.Node]:
    """Return the op calls, without Python functions, for which the user's filter returns a value."""
    if choose is not None and not callable(choose):
        raise BadOptionType(
            "debug.data_dump.filter must be a function of a node; it returns None for nodes that are "
            "not dumped",
            got=f"{choose!r} ({type(choose).__name__})",
        )
    ops = [node for node in calls(gm) if isinstance(node.target, OpOverload | HigherOrderOperator)]
    return {node for node in ops if choose is None or _answer(choose, node) is not None}


def _answer(choose: Callable[[fx.Node], Any], node: fx.Node) -> Any:
    try:
        return choose(node)
    except Exception as error:
        raise BadOption(
            f"debug.data_dump.filter raised {type(error).__name__}: {error}",
            at=source_of(node),
            got=node.format_node() or node.name,
        ).of_user() from error


def save_array(path: Path, value: Any) -> None:
    """Write the value as a numpy file."""
    with atomic_write(path) as file:
        np.save(file, array_of(value), allow_pickle=False)


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value to numpy: types that numpy lacks are widened, other objects become text."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        numbers = value if isinstance(value, list | tuple) else [value]
        is_plain = all(isinstance(number, bool | int | float | complex) for number in numbers)
        return np.asarray(value if is_plain else str(value))
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    plain = plain.dequantize() if plain.is_quantized else plain.to_dense() if plain.is_sparse else plain
    try:
        return plain.numpy()
    except TypeError:
        return plain.to(torch.complex64 if plain.is_complex() else torch.float32).numpy()


def _leaves(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield each value with its place: `0`, or `0.1` for the second tensor of a list."""
    for index, value in enumerate(values):
        if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
            yield from ((f"{index}.{inner}", item) for inner, item in _leaves(value))
        else:
            yield str(index), value
