"""Run scripts for CUDA on the npu device, as a side effect of importing this module: `torch.cuda` behaves as
`torch.npu`, "cuda" means "npu" in all functions with a device, `.cuda()` is `.npu()`, and `nccl` is `hccl`.
This affects the whole process.
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
"""Replacements of process group backends."""
CREATES = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_strided", "eye", "full", "full_like",
    "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm",
    "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    "hann_window", "hamming_window", "set_default_device", "load", "get_device_module",
)  # fmt: skip
"""Functions of torch with a device argument."""
METHODS = (
    "to", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros", "pin_memory",
    "is_pinned", "type",
)  # fmt: skip
"""Methods of tensors with a device argument."""
RENAMED = {"CUDAGraph": "NPUGraph"}
"""Names of `torch.cuda` that are different in `torch.npu`."""
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
    """Return the NPU device for a CUDA device; return other values unchanged."""
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
    """`torch.Generator` that replaces CUDA with the NPU device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator(moved(device))


def _group(value: Any) -> Any:
    """Replace the names of backends, alone or by device."""
    if not isinstance(value, str):
        return moved(value)
    pairs = [pair.rpartition(":") for pair in value.split(",")]
    if not any(name in GROUPS for _, _, name in pairs):
        return moved(value)
    return ",".join(f"{moved(device)}{colon}{GROUPS.get(name, name)}" for device, colon, name in pairs)


def transfer() -> None:
    """Apply the replacements once."""
    keep_constructors()
    for owner, names in PLACES:
        for name in names:
            setattr(owner, name, _wrapped(getattr(owner, name)))
    for owner in (torch.Tensor, nn.Module, torch.UntypedStorage):
        if hasattr(owner, NPU):
            owner.cuda = _wrapped(getattr(owner, NPU))
    kinds.add(CUDA)  # for device objects that the script created earlier and passes to torch.cuda
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
        "transfer_to_npu redirects torch.cuda and the device 'cuda' to the npu device in this process",
        stacklevel=2,
    )


if not hasattr(torch.Tensor.cuda, "__wrapped__"):
    transfer()
