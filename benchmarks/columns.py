"""The ways to run a model that are compared: each a column of the tables."""

from __future__ import annotations

import copy
import os
import tempfile
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

import torchair

Call = Callable[..., Any]


@dataclass(frozen=True)
class Column:
    """One way to run a model: `make(model, dynamic)` gives something that is called like the model."""

    name: str
    title: str
    make: Callable[[nn.Module, bool], Call]
    devices: tuple[str, ...] = ("cpu", "cuda")
    ours: bool = False
    settle: Callable[[], object] = lambda: None  # after the first calls: wait for what goes on behind them


def only_dynamo(gm: fx.GraphModule, inputs: list[Any]) -> Call:
    """A backend that computes once and then hands out the same results: what is left is Dynamo's own cost."""
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        if not kept:
            kept.append(gm(*args))
        return kept[0]

    return run


def own_copy(model: nn.Module) -> nn.Module:
    """The same model, parameters shared, behind a code object of its own.

    Dynamo keeps compiled code by code object: columns that share one would walk each other's guards.
    """
    shared = type(model).forward
    forward = types.FunctionType(
        shared.__code__.replace(),
        shared.__globals__,
        shared.__name__,
        shared.__defaults__,
        shared.__closure__,
    )
    forward.__kwdefaults__ = shared.__kwdefaults__
    twin = copy.copy(model)
    twin.__class__ = type(type(model).__name__, (type(model),), {"forward": forward})
    return twin


class RawGraph:
    """Eager kernels in one CUDA graph over the very tensors of the first call: the floor for any capture."""

    def __init__(self, model: nn.Module, dynamic: bool) -> None:
        self._model = model
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None

    def __call__(self, **feed: Any) -> Any:
        if self._graph is None:
            with torch.cuda.stream(torch.cuda.Stream()):
                self._model(**feed)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self._model(**feed)
        self._graph.replay()
        return self._result


def stock(**options: Any) -> Callable[[nn.Module, bool], Call]:
    """Stock `torch.compile` with the given arguments."""
    return lambda model, dynamic: torch.compile(own_copy(model), dynamic=dynamic, **options)


def air_backend(mode: str, codegen: str = "auto", **engine: Any) -> Call:
    """Our backend as an object, for one mode and one code generator; with other options of the engine."""
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    for name, value in engine.items():
        setattr(config.engine_config, name, value)
    return torchair.get_npu_backend(compiler_config=config)


def air(mode: str, codegen: str = "auto", **engine: Any) -> Callable[[nn.Module, bool], Call]:
    """`torch.compile` with our backend."""
    return lambda model, dynamic: torch.compile(
        own_copy(model), backend=air_backend(mode, codegen, **engine), dynamic=dynamic
    )


class Loaded:
    """Graph mode from a file: exported with the inputs of the first call, and called without the model."""

    def __init__(self, model: nn.Module, dynamic: bool) -> None:
        self._model, self._dynamic = model, dynamic
        self._run: Call | None = None

    def __call__(self, **feed: Any) -> Any:
        if self._run is None:
            device = next(value.device for value in feed.values() if isinstance(value, torch.Tensor))
            with tempfile.TemporaryDirectory() as folder:
                torchair.dynamo_export(
                    model=own_copy(self._model), export_path=folder, dynamic=self._dynamic, **feed
                )
                self._run = torchair.load_air(f"{folder}/export.air", device=device)
        return self._run(**feed)


def kept(mode: str) -> Callable[[nn.Module, bool], Call]:
    """`cache_compile`, whose entries lie among the other caches of the process."""

    def make(model: nn.Module, dynamic: bool) -> Call:
        config = torchair.CompilerConfig()
        config.mode = mode
        folder = Path(os.environ["XDG_CACHE_HOME"]) / "kept"
        return torchair.inference.cache_compile(
            model.forward, config=config, dynamic=dynamic, cache_dir=str(folder)
        )

    return make


def with_static_kernels(model: nn.Module, dynamic: bool) -> Call:
    """Capture mode that also compiles kernels for the shapes it sees."""
    options = {"static_kernel_compile": True}
    return torch.compile(own_copy(model), backend="npugraph_ex", dynamic=dynamic, options=options)


def optimised() -> bool:
    """Wait for the programs that are built in the background."""
    return torchair.wait_until_optimised(600)


COLUMNS = (
    Column("eager", "eager", lambda model, dynamic: model),
    Column("dynamo", "Dynamo alone", stock(backend=only_dynamo)),
    Column("stock", "torch.compile", stock()),
    Column("reduce", "reduce-overhead", stock(mode="reduce-overhead"), devices=("cuda",)),
    Column("tuned", "stock max-autotune", stock(mode="max-autotune"), devices=("cuda",)),
    Column("graph", "graph mode", air("max-autotune"), ours=True, settle=optimised),
    Column("loaded", "graph file", Loaded, ours=True, settle=optimised),
    Column("native", "graph, native", air("max-autotune", "native"), ours=True),
    Column("capture", "capture mode", air("npugraph_ex"), ours=True, settle=optimised),
    Column("raw", "raw CUDA graph", RawGraph, devices=("cuda",)),
    Column(
        "static", "capture, static kernels", with_static_kernels,
        devices=("cuda",), ours=True, settle=optimised,
    ),
)  # fmt: skip
UNCOMPILED = Column("aot", "aot_eager", stock(backend="aot_eager"))
"""Torch's own tracing, and nothing compiled: what a first call costs at least."""
KEPT = (
    Column("kept-graph", "graph, cache_compile", kept("max-autotune"), ours=True, settle=optimised),
    Column("kept-capture", "capture, cache_compile", kept("npugraph_ex"), ours=True, settle=optimised),
)
"""Ways to start; once they have, they run like others."""
BY_NAME = {column.name: column for column in (*COLUMNS, UNCOMPILED, *KEPT)}


def chosen(names: list[str] | None, device: str, among: Iterable[Column] = COLUMNS) -> list[Column]:
    """The columns asked for (all, unless named) that exist on a device, in table order."""
    return [column for column in among if device in column.devices and (not names or column.name in names)]
