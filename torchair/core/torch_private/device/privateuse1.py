"""Register a PrivateUse1 device in torch."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import fx
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._dynamo.source import CallFunctionNoArgsSource
from torch._dynamo.variables import TorchInGraphFunctionVariable, UserDefinedClassVariable
from torch._dynamo.variables.base import VariableTracker
from torch._inductor import config as inductor_config
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)
from torch.utils.dlpack import DLDeviceType

__all__ = [
    "DeviceContext",
    "backend_name",
    "compile_by_default",
    "exchange_by_dlpack",
    "keep_constructors",
    "register_interface",
    "rename_backend",
]

FIXED = ("current_device", "device_count", "is_available", "get_device_properties")
"""Functions of the device whose results at trace time are constants of the traced program."""


def backend_name() -> str:
    """Return the name of the PrivateUse1 device, `privateuseone` if it was not renamed."""
    return torch._C._get_privateuse1_backend_name()


def rename_backend(name: str, module: ModuleType) -> None:
    """Rename the PrivateUse1 device: set its name, its module `torch.<name>`, and the methods of tensors."""
    rename_privateuse1_backend(name)
    torch._register_device_module(name, module)
    generate_methods_for_privateuse1_backend(for_storage=True)


def exchange_by_dlpack(name: str) -> None:
    """Make `torch.from_dlpack` accept tensors of the device: torch looks for a device name that no device
    has.
    """
    plain = torch.Tensor.__dlpack_device__

    @functools.wraps(plain)
    def device_of(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != name:
            return plain(self)
        return DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = device_of


def keep_constructors() -> None:
    """Make `torch.set_default_device` and `with device:` cover the current functions of torch. torch looks
    them up once by name, and would not find functions that replace them.
    """
    _device_constructors()


def compile_by_default(name: str, backend: Callable[..., Any]) -> None:
    """Make `torch.compile` without a backend use this one for graphs of the device, which Inductor does not
    support. Inductor's options are set meanwhile.
    """
    plain = torch._TorchCompileInductorWrapper.__call__

    @functools.wraps(plain)
    def compiled(self: Any, gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        if not any(tensor.device.type == name for tensor in _tensors(gm, inputs)):
            return plain(self, gm, inputs, **options)
        with inductor_config.patch({**self.config, **(options.get("config_patches") or {})}):
            return backend(gm, inputs, records=inductor_config.triton.cudagraphs)

    torch._TorchCompileInductorWrapper.__call__ = compiled


def _tensors(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a Dynamo graph."""
    values = [inputs, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    yield from (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    yield from (*gm.parameters(), *gm.buffers())


def register_interface(name: str, module: Any, stream: type, event: type) -> None:
    """Register the device interface that Dynamo uses, implemented by the device's module."""

    def raw_stream(index: int) -> int:
        return module.current_stream(index).stream_id

    members = {
        "Stream": stream,
        "Event": event,
        "device": module.device,
        "get_raw_stream": staticmethod(raw_stream),
        "is_available": staticmethod(module.is_available),
        "is_bf16_supported": staticmethod(lambda including_emulation=False: True),
        "exchange_device": staticmethod(lambda index: _exchange(module, index)),
        "maybe_exchange_device": staticmethod(lambda index: _exchange(module, index)),
        "get_compute_capability": staticmethod(lambda device=None: None),
        **{
            each: staticmethod(getattr(module, each))
            for each in (
                "current_device",
                "set_device",
                "device_count",
                "stream",
                "current_stream",
                "set_stream",
                "synchronize",
                "get_device_properties",
                "memory_allocated",
            )
        },
    }
    made = type(f"{name.title()}Interface", (DeviceInterface,), members)
    register_interface_for_device(name, made)
    for index in range(module.device_count()):
        register_interface_for_device(f"{name}:{index}", made)
    _trace_streams(module, stream, event)


def _trace_streams(module: Any, stream: type, event: type) -> None:
    """Make Dynamo handle streams and events of the device like those of CUDA."""
    UserDefinedClassVariable._in_graph_classes().update((stream, event))
    handlers = TorchInGraphFunctionVariable._get_handlers()
    for ours, like in (
        (module.current_stream, torch.accelerator.current_stream),
        (module.stream, torch.cuda.stream),
    ):
        if like in handlers:
            torch.compiler.allow_in_graph(ours)
            handlers[ours] = handlers[like]
    torch.compiler.allow_in_graph(module.default_stream)
    handlers[module.default_stream] = _default_stream
    for name in FIXED:
        torch.compiler.assume_constant_result(getattr(module, name))


def _default_stream(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the default stream as an external stream. It is the same in every call."""
    if args or kwargs or variable.source is None:
        return None  # handle it like any function
    source = CallFunctionNoArgsSource(variable.source)
    return VariableTracker.build(tx, variable.value(), source)


def _exchange(module: Any, index: int) -> int:
    before = module.current_device()
    if index >= 0:
        module.set_device(index)
    return before
