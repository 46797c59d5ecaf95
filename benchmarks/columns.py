"""The ways to run a model that are compared: each a column of the tables."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
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


def stock(**options: Any) -> Callable[[nn.Module, bool], Call]:
    """Stock `torch.compile` with the given arguments."""
    return lambda model, dynamic: torch.compile(own_copy(model), dynamic=dynamic, **options)


def air_backend(mode: str, codegen: str = "auto") -> Call:
    """Our backend as an object, for one mode and one code generator."""
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    return torchair.get_npu_backend(compiler_config=config)


def air(mode: str, codegen: str = "auto") -> Callable[[nn.Module, bool], Call]:
    """`torch.compile` with our backend."""
    return lambda model, dynamic: torch.compile(
        own_copy(model), backend=air_backend(mode, codegen), dynamic=dynamic
    )


COLUMNS = (
    Column("eager", "eager", lambda model, dynamic: model),
    Column("dynamo", "Dynamo alone", stock(backend=only_dynamo)),
    Column("stock", "torch.compile", stock()),
    Column("reduce", "reduce-overhead", stock(mode="reduce-overhead"), devices=("cuda",)),
    Column("graph", "graph mode", air("max-autotune"), ours=True),
    Column("native", "graph, native", air("max-autotune", "native"), ours=True),
    Column("capture", "capture mode", air("npugraph_ex"), ours=True),
)
BY_NAME = {column.name: column for column in COLUMNS}


def chosen(names: list[str] | None, device: str) -> list[Column]:
    """The columns asked for (all, unless named) that exist on a device, in table order."""
    return [column for column in COLUMNS if device in column.devices and (not names or column.name in names)]
