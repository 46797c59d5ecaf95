"""Importing this turns a script for CUDA into one for the device: `torch.cuda` answers as `torch.npu`, "cuda"
means "npu" wherever torch takes a device, `.cuda()` is `.npu()`, and `nccl` is `hccl`. It holds for the whole
process.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed, nn

from torchair.core.torch_private.device.privateuse1 import DeviceContext, keep_constructors
from torchair.sim import npu
from torchair.sim.npu.device import kinds
from torchair.sim.plugin import profiler

CUDA, NPU = "cuda", "npu"
OLD_TYPES = "torch.cuda."
GROUPS = {"nccl": "hccl"}
"""Backends of groups, by what stands for them."""
CREATES = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_strided", "eye", "full", "full_like",
    "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm",
    "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    "hann_window", "hamming_window", "set_default_device", "load", "get_device_module",
)  # fmt: skip
"""Functions of torch that take a device."""
METHODS = (
    "to", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros", "pin_memory",
    "is_pinned", "type",
)  # fmt: skip
"""Methods of tensors that do."""
RENAMED = {"CUDAGraph": "NPUGraph"}
"""Names of `torch.cuda` that have another one in `torch.npu`."""
PLACES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, CREATES),
    (torch.Tensor, METHODS),
    (nn.Module, ("to", "to_empty")),
    (torch.autocast, ("__init__",)),
    (torch.amp.GradScaler, ("__init__",)),
    (torch.utils.data.DataLoader, ("__init__",)),
    (DeviceContext, ("__init__",)),
)


def moved(value: Any) -> Any:
    """A device of CUDA as one of the NPU, anything else as it is."""
    if isinstance(value, torch.device) and value.type == CUDA:
        return torch.device(NPU) if value.index is None else torch.device(NPU, value.index)
    if isinstance(value, str) and (value == CUDA or value.startswith(f"{CUDA}:")):
        return NPU + value.removeprefix(CUDA)
    if isinstance(value, str) and value.startswith(OLD_TYPES):
        return f"torch.{NPU}.{value.removeprefix(OLD_TYPES)}"
    if isinstance(value, Mapping) and any(moved(each) is not each for each in (*value, *value.values())):
        return {moved(key): moved(each) for key, each in value.items()}
    return value


def _wrapped(function: Callable[..., Any], change: Callable[[Any], Any] = moved) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(
            *[change(each) for each in args], **{key: change(each) for key, each in kwargs.items()}
        )

    return call


class _IsGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


_Generator = torch.Generator


class Generator(metaclass=_IsGenerator):
    """`torch.Generator`, of the device where CUDA is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator(moved(device))


def _group(value: Any) -> Any:
    """Names of backends, alone or for each device."""
    if not isinstance(value, str):
        return moved(value)
    pairs = [pair.rpartition(":") for pair in value.split(",")]
    if not any(name in GROUPS for _, _, name in pairs):
        return moved(value)
    return ",".join(f"{moved(device)}{colon}{GROUPS.get(name, name)}" for device, colon, name in pairs)


def transfer() -> None:
    """Do it, once."""
    keep_constructors()
    for owner, names in PLACES:
        for name in names:
            setattr(owner, name, _wrapped(getattr(owner, name)))
    for owner in (torch.Tensor, nn.Module, torch.UntypedStorage):
        if hasattr(owner, NPU):
            owner.cuda = _wrapped(getattr(owner, NPU))
    kinds.add(CUDA)  # for devices that the script has made already, and passes to torch.cuda
    torch.Generator = Generator  # type: ignore[misc, assignment]
    torch.Tensor.is_cuda = torch.Tensor.is_npu  # type: ignore[attr-defined, assignment]
    for name in (*torch.cuda.__all__, "is_bf16_supported"):
        if hasattr(npu, RENAMED.get(name, name)):
            setattr(torch.cuda, name, getattr(npu, RENAMED.get(name, name)))
    torch.cuda.amp.autocast = npu.amp.autocast  # type: ignore[misc]
    torch.cuda.amp.GradScaler = npu.amp.GradScaler  # type: ignore[misc]
    torch.cuda.amp.custom_fwd, torch.cuda.amp.custom_bwd = npu.amp.custom_fwd, npu.amp.custom_bwd
    torch.profiler.profile = profiler.profile  # type: ignore[misc]
    if distributed.is_available():
        for name in ("init_process_group", "new_group"):
            setattr(distributed, name, _wrapped(getattr(distributed, name), _group))
        distributed.is_nccl_available = distributed.is_available
    warnings.warn(
        "from now on torch.cuda and the device 'cuda' are the npu device in this process", stacklevel=2
    )


if not hasattr(torch.Tensor.cuda, "__wrapped__"):
    transfer()
