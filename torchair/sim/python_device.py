"""Simulate the device without the C++ part: one device, with ops that Python runs on host tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.errors import NotPossible
from torchair.core.torch_private.device.python_backend import (
    as_tensor_of,
    host_of,
    natively,
    put_at,
    register_device,
    run_ops_by,
    window,
)
from torchair.core.torch_private.fake.pytree import leaves, tree_map
from torchair.core.torch_private.operators.schemas import OpOverload

aten = torch.ops.aten
COMPILER = "install a C++ compiler (g++ or clang++)"
TAKE_INDICES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Ops that also accept indices on the host."""


def npu() -> torch.device:
    """Return the only device."""
    return torch.device("npu", 0)


class HostCall:
    """Convert the tensors of one call to host tensors and back."""

    def __init__(self) -> None:
        self.given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def show(self, value: Any) -> Any:
        """Convert a value to the host."""
        if isinstance(value, torch.device) and value.type == "npu":
            if value.index:
                raise RuntimeError(f"NPU error: invalid device ordinal {value.index}; there is one device")
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or value.device.type != "npu":
            return value
        host = host_of(value)
        self.given.append((value, host))
        return host

    def hide(self, value: Any) -> Any:
        """Convert a result to the device: to the argument itself, a view of it, or a new tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided:
            raise NotPossible(f"tensors with {value.layout} need the C++ part of the device", next=COMPILER)
        address = value.untyped_storage().data_ptr()
        for tensor, host in self.given:
            if host is value:
                return tensor
        for tensor, host in self.given:
            if address and host.untyped_storage().data_ptr() == address:
                return window(tensor, value)
        made = as_tensor_of(npu(), value)
        self.given.append((made, value))
        return made

    def follow(self) -> None:
        """Update arguments that were resized, because their memory moved."""
        for tensor, host in self.given:
            is_moved = tensor.untyped_storage().data_ptr() != host.untyped_storage().data_ptr()
            if is_moved or (tensor.shape, tensor.stride()) != (host.shape, host.stride()):
                put_at(tensor, npu(), host)


def run_op(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run one op of the device."""
    hosts = HostCall()
    name = op._schema.name
    _check_devices(op, [*leaves(args), *leaves(kwargs)])
    if name == "aten::set_":
        return natively(op, *args)
    if name == "aten::_copy_from":
        source, target = hosts.show(args[0]), hosts.show(args[1])
        target.copy_(source)
        return args[1]
    shown, rest = tree_map(hosts.show, args), tree_map(hosts.show, kwargs)
    if rest.get("pin_memory"):
        raise RuntimeError("only dense CPU tensors can be pinned")
    made = _of_host(op, shown)(*shown, **rest)
    hosts.follow()
    return tree_map(hosts.hide, made)


def _of_host(op: OpOverload, args: Sequence[Any]) -> Callable[..., Any]:
    """Return the op for host tensors; the overload for numbers if a tensor became a number."""
    if op in CONVOLUTIONS:
        return CONVOLUTIONS[op]
    pairs = zip(op._schema.arguments, args, strict=False)
    if any(str(a.type) == "Tensor" and isinstance(value, int | float | complex) for a, value in pairs):
        return op.overloadpacket
    return op


def _convolution_backward(grad: Any, x: Any, weight: Any, *how: Any) -> Any:
    *_, is_transposed, _, groups, mask = how
    channels = weight.shape[1] * groups if is_transposed else weight.shape[0]
    made = aten.convolution_backward(grad, x, weight, [channels] if mask[2] else None, *how)
    return tuple(None if grad is None else grad.contiguous() for grad in made)


def _convolution(*args: Any) -> torch.Tensor:
    """Run a convolution with contiguous results, as the fake kernel of torch assumes for such devices."""
    return aten.convolution(*args).contiguous()


CONVOLUTIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_overrideable.default: _convolution,
    aten.convolution_backward_overrideable.default: _convolution_backward,
}
"""Ops that torch calls for custom devices."""


def _check_devices(op: OpOverload, values: Sequence[Any]) -> None:
    name = op._schema.name
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if name == "aten::_copy_from" or name in TAKE_INDICES:
        return
    strangers = [each for each in tensors if each.device.type == "cpu" and each.dim()]
    if strangers and any(each.device.type == "npu" for each in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu! "
            f"(when checking the arguments of {name})"
        )


class PythonShim:
    """Python replacement of the C++ part, with fewer features."""

    DEVICE_TYPE = 20

    def __init__(self, why: str, error: Exception) -> None:
        self.why, self.error = why, error
        self._memory = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotPossible(
            f"{name} needs the C++ part of the simulated npu device, which cannot be built: {self.why}",
            next=COMPILER,
        )

    class Memo:
        """Empty placeholder of the C++ class."""

    def install(self, devices: int, backing: str, memory: int) -> None:
        """Register the device with torch."""
        self._memory = memory
        register_device()
        run_ops_by(run_op, [*CONVOLUTIONS])

    def setup(self) -> tuple[int, str, int]:
        """Return the arguments of the installation."""
        return 1, "cpu", self._memory

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def current_device(self) -> int:
        """Return the index of the only device."""
        return 0

    def set_device(self, index: int) -> None:
        """Do nothing: there is only one device."""

    def total_memory(self, index: int) -> int:
        """Return the memory size given to `install`."""
        return self._memory

    def synchronize(self, index: int) -> None:
        """Do nothing: work runs synchronously."""

    def current_stream(self, index: int) -> int:
        """Return the default stream."""
        return 0

    def set_stream(self, index: int, stream: int) -> None:
        """Do nothing: there is only one stream."""

    def is_capturing(self, index: int) -> bool:
        """Return False: there are no graphs."""
        return False

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""

    def default_generator(self, index: int) -> torch.Generator:
        """Return the generator of the host."""
        return torch.default_generator

    def device_at(self, address: int) -> int | None:
        """Return None: all addresses are on the host."""
        return None

    def show(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the host."""
        return host_of(tensor)

    def run_program(self, program: Any, args: list[Any], written: Any, index: int, memo: Any) -> list[Any]:
        """Call a program of the host with tensors of the device."""
        hosts = HostCall()
        made = program([hosts.show(arg) for arg in args])
        return [hosts.hide(value) for value in made]
