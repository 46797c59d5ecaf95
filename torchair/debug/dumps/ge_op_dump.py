"""Dump the inputs and outputs of the ops of a GE graph while the reference engine runs it.

<folder>/<YYYYmmddHHMMSS>/<device>/<graph>/<id>/<run>/
    <type>.<op>.<task>.<stream>.<timestamp>.<input|output>.<index>.npy
            statistics.csv                                              instead, if statistics are selected

    The task is the number of the op in the run. Constants have no files of their own; they are inputs of
    other ops.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchair.core.diagnostics import Diagnostics
from torchair.debug.dumps.dump_plan import DumpPlan
from torchair.debug.dumps.files import WarnOnWriteError, make_folder, now, rank_and_size, write_text
from torchair.debug.dumps.options import DebugOptions
from torchair.debug.dumps.tensor_dump import array_of, save_array
from torchair.engine.evaluate import Value
from torchair.ge.graph import INPUT_TYPES, Graph, Op
from torchair.ge.host import Host

SCOPE = "torchair_enable_data_dump"
"""Attribute of ops in a `scope.data_dump()` block."""
JSON_FOLDER = "ge_dump_data_json"
STATISTICS = (
    "Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "Input/Output", "Index", "Data Size",
    "Data Type", "Format", "Shape", "Max Value", "Min Value", "Avg Value", "L2 Norm", "Count", "Nan Count",
    "Inf Count",
)  # fmt: skip
STREAM = 0
Tensors = list[torch.Tensor]


class EngineDump:
    """Dump the runs of one graph."""

    def __init__(self, graph: Graph, plan: DumpPlan, device: torch.device, degradations: Diagnostics) -> None:
        self._plan = plan
        self._degradations = degradations
        self._names = layers(graph, plan)
        self._runs = 0
        name = plain(graph.name)
        number = name.rpartition("_")[2]
        self._below = (now()[:14], str(device.index or 0), name, number if number.isdigit() else "0")
        known = {op.name for part in (graph, *graph.subgraphs.values()) for op in part.ops}
        if self._names and not self._names & known:
            degradations.add(
                f"dump_config dumps nothing of graph {graph.name}: it has no op named "
                f"{', '.join(sorted(self._names))}",
                next="write the graph with debug.graph_dump to see the names",
            )

    @contextlib.contextmanager
    def run(self) -> Iterator[Run | None]:
        """Yield the observer of one run of the graph, or None if this run is not dumped."""
        step, self._runs = self._runs, self._runs + 1
        if not self._plan.at(step):
            yield None
            return
        seen = Run(self._plan, self._names, (*self._below, str(step)), self._degradations)
        try:
            yield seen
        finally:
            seen.end()


class Run:
    """Observe the ops of one run."""

    def __init__(
        self, plan: DumpPlan, names: frozenset[str], below: tuple[str, ...], degradations: Diagnostics
    ) -> None:
        self._plan, self._names, self._degradations = plan, names, degradations
        self._below = below
        self._tasks = 0
        # Running ops, with their task and inputs: ops of a sub-graph run inside of an op.
        self._begun: list[tuple[int, Tensors]] = []
        self._rows: list[list[Any]] = []

    def before(self, op: Op, values: Sequence[Value]) -> None:
        """Dump inputs before an op runs, because it may write into them."""
        read: Tensors = []
        if self._wants(op) and ("input" in self._plan.sides or self._plan.overflow):
            with WarnOnWriteError(self._degradations, "a dumped tensor"):
                read = [_tensor(value).detach().clone() for value in values]
        self._begun.append((self._tasks, read))
        self._tasks += 1

    def after(self, op: Op, values: Sequence[Value]) -> None:
        """Dump the outputs after an op ran."""
        task, read = self._begun.pop()
        if not self._wants(op):
            return
        with WarnOnWriteError(self._degradations, "a dumped tensor"):
            made = [_tensor(value) for value in values]
            if self._plan.overflow and (_overflows(read) or not _overflows(made)):
                return
            head = (plain(op.type), plain(op.name), task, STREAM, now())
            for side, tensors in (("input", read), ("output", made)):
                if side in self._plan.sides:
                    self._write(head, side, tensors)

    def end(self) -> None:
        """Write the statistics at the end of the run."""
        if not self._rows:
            return
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([STATISTICS, *self._rows])
        with WarnOnWriteError(self._degradations, "the statistics of a run"):
            write_text(self._folder() / "statistics.csv", text.getvalue())

    def _wants(self, op: Op) -> bool:
        if op.type == "Const":
            return False
        return not self._names or op.name in self._names

    def _write(self, head: tuple[Any, ...], side: str, tensors: Sequence[torch.Tensor]) -> None:
        for index, tensor in enumerate(tensors):
            if self._plan.stats:
                self._rows.append([*head, side, index, *_statistics(tensor)])
            else:
                path = self._folder() / f"{'.'.join(map(str, head))}.{side}.{index}.npy"
                save_array(path, array_of(tensor))

    def _folder(self) -> Path:
        return make_folder(self._plan.folder, *self._below)


def layers(graph: Graph, plan: DumpPlan) -> frozenset[str]:
    """Return the names of the ops to dump, with the graph inputs that feed them; empty means all."""
    marked = {op.name for op in graph.ops if SCOPE in op.attrs}
    names = plan.layers_of(graph.name) | marked
    fed = [tensor.op for op in graph.ops if op.name in names for tensor in op.inputs]
    return frozenset(names | {op.name for op in fed if op.type in INPUT_TYPES})


def write_options(graph: Graph, options: DebugOptions, plan: DumpPlan) -> None:
    """Write the file that configures the dump of a runtime; each graph of the process adds its entry."""
    rank, size = rank_and_size()
    folder = make_folder(Path(JSON_FOLDER))
    path = folder / f"dump_options_worldsize{size}_rank{rank}_pid{os.getpid()}.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["dump"]["dump_list"] if path.exists() else []
    names = plan.layers_of(graph.name) | {op.name for op in graph.ops if SCOPE in op.attrs}
    entry = {"model_name": graph.name} | ({"layer": sorted(names)} if names else {})
    told_so = {
        "dump_path": str(plan.folder),
        "dump_mode": options.dump_mode,
        "dump_data": options.dump_data,
        "dump_step": options.dump_step,
        "quant_dumpable": "1" if options.quant_dumpable else "",
    }
    content = {key: value for key, value in told_so.items() if value} | {"dump_list": [*entries, entry]}
    write_text(path, json.dumps({"dump": content}, indent=2))


def plain(name: str) -> str:
    """Return a name that can be part of a path."""
    return re.sub(r"[./\\ ]", "_", name)


def _tensor(value: Value) -> torch.Tensor:
    return value.to_tensor("cpu") if isinstance(value, Host) else value


def _overflows(tensors: Sequence[torch.Tensor]) -> bool:
    arrays = map(array_of, tensors)
    return any(array.dtype.kind in "fc" and not np.isfinite(array).all() for array in arrays)


def _statistics(tensor: torch.Tensor) -> list[Any]:
    """Return size, type and statistics for comparing two dumps; the statistics ignore non-finite elements."""
    array = array_of(tensor)
    facts = [tensor.nbytes, str(tensor.dtype).removeprefix("torch."), "ND", "x".join(map(str, array.shape))]
    is_number = array.dtype.kind in "fc"
    finite = array[np.isfinite(array)] if is_number else array
    nans, infinities = (int(np.isnan(array).sum()), int(np.isinf(array).sum())) if is_number else (0, 0)
    wide = np.abs(finite) if array.dtype.kind == "c" else finite.astype(np.float64)
    numbers = [float(f(wide)) for f in (np.max, np.min, np.mean, np.linalg.norm)] if wide.size else [""] * 4
    return [*facts, *numbers, array.size, nans, infinities]
