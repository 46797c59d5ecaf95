"""Kernels for the very shapes of a recording, compiled in the background while the plain recording serves.

Tracing and compiling patch torch's globals, so another thread cannot do it beside a serving one. A process of
its own compiles with Inductor and hands the code over as data. A thread waits for the processes, one after
the other, and loads what they made; the next call of that key takes the program.

With a build directory, the cache is there, in `static_kernel_compile_outputs/static_kernel_cache`, and beside
it each order leaves a folder with what was ordered and what the compiler said.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.capture import Pending
from torchair.capture.key import key_text
from torchair.capture.promised import Promised
from torchair.codegen import BUILDING, How, build, load
from torchair.core.degraded import Degradations
from torchair.core.environment import text_of
from torchair.core.errors import first_line
from torchair.core.log import capture_logger as logger
from torchair.core.log import progress
from torchair.core.pack import unpack
from torchair.core.program import Code, Program
from torchair.core.torch_private.fake import (
    FakeTensorMode,
    ShapeEnv,
    dump_graph,
    fake_tensor_prop,
    faking,
    load_graph,
)
from torchair.core.torch_private.inductor import code_folder, code_kept_in
from torchair.debug.files import make_folder, now
from torchair.devices import device_row
from torchair.fxgraph.contract import Contract
from torchair.fxgraph.edit import copy_graph

LOCAL = "LOCAL_WORLD_SIZE"
OUTPUTS, KERNELS = "static_kernel_compile_outputs", "static_kernel_cache"
CODE = "program.pack"
"""What the process leaves: the code of the program, packed."""


@dataclass(frozen=True)
class Like:
    """What a compiler needs to know of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> torch.Tensor:
        """A tensor like this one."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def likes_of(args: Sequence[Any]) -> list[Any]:
    """Descriptions in place of tensors; numbers stay."""
    return [
        Like(tuple(arg.size()), tuple(arg.stride()), arg.dtype, arg.device)
        if isinstance(arg, torch.Tensor)
        else arg
        for arg in args
    ]


@dataclass(frozen=True)
class Order:
    """Everything a compiler needs, in a form that another process reads."""

    graph: bytes
    likes: list[Any]
    static: tuple[int, ...]
    cached: bool
    threads: int  # Inductor's code for the CPU depends on it
    root: str = ""  # of what is built; nothing but Inductor's own cache if there is none

    @property
    def folder(self) -> str:
        """Where kernels are kept; empty: in Inductor's own cache."""
        return os.path.join(self.root, KERNELS) if self.root else ""

    def fill(self) -> Program:
        """Compile, or take what was compiled for the same order before."""
        # Inductor's cache wants to know about symbols, even where there are none.
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        gm = load_graph(self.graph, mode)
        with torch.no_grad():
            with faking(mode):
                inputs = [like.make() if isinstance(like, Like) else like for like in self.likes]
            fake_tensor_prop(gm, mode, inputs)
            how = How(self.static, decomposed=False, tuned=True, cached=self.cached, folder=self.folder)
            return build("inductor", gm, inputs, how)

    def load(self, code: Code) -> Program:
        """The program that another process made of this order."""
        with BUILDING, code_kept_in(self.folder):
            return load(code)

    def is_tuned(self) -> bool:
        """Are there kernels to try out?"""
        return any(isinstance(like, Like) and device_row(like.device).tuned for like in self.likes)

    def stand_ins(self) -> list[Any]:
        """Arguments to run the program with, zeros. Tensors that are alike are one: a model of many equal
        layers takes the memory of one.
        """
        made = {like: like.make() for like in self.likes if isinstance(like, Like)}
        for tensor in made.values():
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).zero_()
        return [made[like] if isinstance(like, Like) else like for like in self.likes]


class Job(Pending):
    """One program on its way."""

    def __init__(self, title: str, order: Order, contract: Contract, degradations: Degradations) -> None:
        super().__init__()
        self._degradations = degradations
        self._title = title
        self._order = order
        self._contract = contract
        self._failed = ""
        self._program: Program | None = None

    def run(self) -> None:
        """Compile in a process of its own, and load what it made."""
        began, phase = time.perf_counter(), "compiled"
        try:
            with _workplace(self._order.root) as folder:
                self._failed = _compile_elsewhere(self._order, folder)
                if not self._failed:
                    phase = "loaded"
                    self._program = self._order.load(unpack((folder / CODE).read_bytes()))
        except Exception as error:
            self._failed = f"{type(error).__name__}: {first_line(error)}"
        if self._failed:
            self._failed = f"{phase}: {self._failed}"
        else:
            logger.event("static kernels for %s: ready in %.1f s", self._title, time.perf_counter() - began)
        self.is_done.set()

    def take(self) -> Program | None:
        """The program; None when it could not be made."""
        if self._program is None:
            self._degradations.add(f"static kernels for {self._title} are not {self._failed}")
            return None
        return Promised(self._program, self._contract, (), self._degradations)


def outputs_below(build_dir: str | None) -> str:
    """Where things are built if a directory was named."""
    return "" if build_dir is None else os.path.abspath(os.path.join(build_dir, OUTPUTS))


@contextlib.contextmanager
def _workplace(root: str) -> Iterator[Path]:
    """Where one order is compiled: a folder of its own that stays, or a temporary one without a root."""
    if root:
        yield make_folder(Path(root), f"ts{now()}_pid{os.getpid()}_outputs")
        return
    with tempfile.TemporaryDirectory(prefix="torchair-static-") as folder:
        yield Path(folder)


def _compile_elsewhere(order: Order, folder: Path) -> str:
    """Run the compiler; empty when it ended well, else what it said last."""
    path = folder / "order.pickle"
    path.write_bytes(pickle.dumps(order))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= code_folder(order.folder) if order.folder else {}
    done = subprocess.run(
        [sys.executable, "-m", "torchair.backend.static_worker", str(path)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    (folder / "compiler.log").write_text(done.stderr)
    return "" if done.returncode == 0 else _last_line(done.stderr) or f"exit status {done.returncode}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Worker:
    """The thread that waits for compilers, started with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._given = self._finished = 0

    def give(self, job: Job) -> None:
        """Compile this after all given before."""
        with self._lock:
            self._given += 1
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="static kernels", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until nothing is left to compile; False when that takes longer."""
        end = time.monotonic() + seconds
        while self._finished < self._given:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with progress(f"static kernels {self._finished + 1}/{self._given}"):
                job.run()
            self._finished += 1


WORKER = Worker()


def is_wanted(symbol: int, values: Collection[int] | None, args: Sequence[Any]) -> bool:
    """Is this number among the arguments one of these values? All are, where there are none to pick from."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    return values is None or any(number in values for number in numbers[symbol : symbol + 1])


@dataclass(frozen=True)
class StaticKernels:
    """Programs for the keys of one graph."""

    gm: fx.GraphModule
    name: str
    static: tuple[int, ...]
    contract: Contract
    degradations: Degradations
    cached: bool = True
    root: str = ""
    """Of what is built, see `Order`."""
    wanted: Callable[[Sequence[Any]], bool] = lambda args: True
    """Are these arguments worth it?"""

    def __call__(self, key: Hashable, args: Sequence[Any]) -> Pending | None:
        """Start compiling for this key; None when it is not wanted or cannot be sent."""
        if not self.wanted(args):
            return None
        if why := why_not_here():
            self.degradations.add(f"static kernels of {self.name} are not compiled: {why}")
            return None
        title, likes = f"{self.name} {key_text(key)}", likes_of(args)
        try:
            graph = dump_graph(specialised(self.gm, likes))
        except Exception as error:
            self.degradations.add(f"static kernels for {title} are not compiled: {_last_line(str(error))}")
            return None
        order = Order(graph, likes, self.static, self.cached, torch.get_num_threads(), self.root)
        job = Job(title, order, self.contract, self.degradations)
        WORKER.give(job)
        return job


def world_size() -> int:
    """How many processes work together."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if grouped else 1


def why_not_here() -> str:
    """With several processes, each must know how many of them share its machine."""
    world, local = world_size(), text_of(LOCAL)
    if world == 1 or (local.isdecimal() and int(local) > 0 and world % int(local) == 0):
        return ""
    return f"there are {world} processes, and {LOCAL} is {local!r}, not a number that divides them"


def specialised(gm: fx.GraphModule, likes: Sequence[Any]) -> fx.GraphModule:
    """A copy of the graph with these sizes: symbols, and all that is computed from them, are numbers."""
    made = copy_graph(gm)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with faking(mode), torch.no_grad():
        inputs = iter([like.make() if isinstance(like, Like) else like for like in likes])
        run = fx.Interpreter(made)
        numbers: dict[fx.Node, Any] = {}
        for node in made.graph.nodes:
            node.args, node.kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda source: numbers.get(source, source)
            )
            if node.op == "output":
                break
            value = next(inputs) if node.op == "placeholder" else run.run_node(node)
            run.env[node] = value
            node.meta = {}
            if isinstance(value, int | float | bool):
                numbers[node] = value
    for node in reversed(list(numbers)):
        if node.op != "placeholder":
            made.graph.erase_node(node)
    constants = {node.target: getattr(made, node.target) for node in made.graph.find_nodes(op="get_attr")}
    made.graph.output_node().meta = {}
    return fx.GraphModule(constants, made.graph)
