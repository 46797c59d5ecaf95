"""Convert weights to private layouts of Ascend devices: blocks in the order in which matrix units read them.

A private layout is a property of the device: sizes, strides and values of the tensor do not change. CPU and
CUDA have none, so that a cast to one returns the tensor itself.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchair.core.environment import text_of
from torchair.core.errors import NotPossible
from torchair.core.log import logger
from torchair.core.registries.vendor_plugin import PLUGIN

FRACTAL_Z, FRACTAL_NZ = 4, 29
TIMEOUT = "ACL_STREAM_TIMEOUT"
NPU = "npu"


def _always(module: nn.Module) -> bool:
    return True


def _dense(dtype: torch.dtype) -> Callable[[nn.Module], bool]:
    """Return a predicate: one group of channels, and a weight of this type."""

    def applies(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        return weight is not None and getattr(module, "groups", 1) == 1 and weight.dtype == dtype

    return applies


@dataclass(frozen=True)
class LayoutRule:
    """Layout of the weights of a module class, given by name because its package is optional."""

    package: str
    name: str
    layout: int
    applies: Callable[[nn.Module], bool] = _always
    refuses_host: bool = True
    """Whether a weight on the CPU is an error."""
    packs_scale: bool = False
    """Whether a float32 scale is packed into the device's format."""


RULES = (
    LayoutRule("torch.nn", "Conv2d", FRACTAL_Z, _dense(torch.float16)),
    LayoutRule("torch.nn", "Linear", FRACTAL_NZ),
    LayoutRule("deepspeed", "LinearLayer", FRACTAL_NZ),
    LayoutRule("deepspeed", "LinearAllreduce", FRACTAL_NZ),
    LayoutRule(PLUGIN, "LinearA8W8Quant", FRACTAL_NZ, refuses_host=False, packs_scale=True),
    LayoutRule(PLUGIN, "LinearQuant", FRACTAL_NZ, refuses_host=False, packs_scale=True),
    LayoutRule(PLUGIN, "LinearWeightQuant", FRACTAL_NZ, refuses_host=False),
    LayoutRule(PLUGIN, "QuantConv2d", FRACTAL_Z, _dense(torch.int8), packs_scale=True),
)


def use_internal_format_weight(model: nn.Module) -> None:
    """Convert the weights of linear and convolution layers to the private layout of their device.

    Call this after the model was moved to the device, before it is compiled. Without `torch_npu` there is no
    such layout: an error is logged, and the model stays unchanged.

    Args:
        model: The model. Its weights are converted in place.

    Raises:
        NotPossible: A weight that needs a private layout is on the CPU.

    Example:
        >>> model = model.to("npu")
        >>> torchair.use_internal_format_weight(model)
    """
    plugin = sys.modules.get(PLUGIN)
    if plugin is None:
        logger.error("use_internal_format_weight has no effect: %s is not imported", PLUGIN)
        return
    for name, module, rule in _ruled(model):
        weight: torch.Tensor = module.weight
        if weight.device.type == "cpu" and rule.refuses_host:
            raise NotPossible(
                f"the weight of {name or 'the model'} is on the CPU, which has no private layouts",
                got=f"{rule.name} with a {weight.dtype} weight of {tuple(weight.shape)}",
                next="move the model to the device first: model.to('npu')",
            )
        weight.data = plugin.npu_format_cast(weight.data, rule.layout)
        scale = getattr(module, "scale", None)
        if rule.packs_scale and isinstance(scale, torch.Tensor) and scale.dtype == torch.float32:
            scale.data = plugin.npu_trans_quant_param(scale.data)


def _ruled(model: nn.Module) -> Iterator[tuple[str, Any, LayoutRule]]:
    """Yield the modules that have a rule, with the first rule that applies; subclasses count."""
    for name, module in model.named_modules():
        kinds = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(module).__mro__}
        for rule in RULES:
            if (rule.package.split(".")[0], rule.name) in kinds and rule.applies(module):
                yield name, module, rule
                break


def npu_format_cast(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """Convert a tensor to another layout of its device. CPU and CUDA have one layout, so the result is the
    tensor itself.

    Args:
        self: The tensor.
        acl_format: Number of the layout.
        customize_dtype: Data type of the stored values, for devices with private layouts.

    Returns:
        The tensor in the other layout.
    """
    if self.device.type != NPU:
        return self
    return importlib.import_module(PLUGIN).npu_format_cast(self, acl_format, customize_dtype)


def npu_format_cast_via_cpu(
    self: torch.Tensor, acl_format: int, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """Convert an int8 matrix to the block layout 29, for devices that cannot change the layout themselves.

    The call first waits for the current stream, for at most `ACL_STREAM_TIMEOUT` milliseconds.

    Args:
        self: An int8 tensor of two or more dims.
        acl_format: The layout, 29.
        customize_dtype: Has no effect.
        input_dtype: Has no effect.

    Returns:
        A new tensor of the same logical shape.

    Raises:
        NotPossible: The tensor or the layout is not supported, or the stream takes longer.
    """
    why = _why_not_blocked(self, acl_format)
    if why:
        raise NotPossible(
            f"npu_format_cast_via_cpu cannot convert this tensor: {why}",
            got=f"{self.dtype}{list(self.shape)}, acl_format {acl_format}",
            next="pass an int8 tensor of two or more dims, and acl_format 29",
        )
    _synchronize(self.device)
    if self.device.type != NPU:
        return self.clone()
    return npu_format_cast(self.cpu().to(self.device), acl_format)


def _why_not_blocked(x: torch.Tensor, acl_format: int) -> str:
    if acl_format != FRACTAL_NZ:
        return f"only acl_format {FRACTAL_NZ} is supported"
    if x.dtype != torch.int8:
        return "only int8 has this layout"
    if x.dim() < 2:
        return "the tensor must have at least two dims"
    return "" if all(x.shape[-2:]) else "the matrix is empty"


def _synchronize(device: torch.device) -> None:
    """Wait for the current stream of the device."""
    limit = _timeout()
    if device.type == "cpu":
        return
    stream = torch.get_device_module(device).current_stream(device)
    if limit < 0:
        stream.synchronize()
    end = time.monotonic() + limit / 1000
    while not stream.query():
        if time.monotonic() > end:
            raise NotPossible(
                f"the current stream did not finish within {limit} ms",
                next=f"increase the environment variable {TIMEOUT}",
            )
        time.sleep(0.0005)


def _timeout() -> int:
    text = text_of(TIMEOUT)
    try:
        limit = int(text)
    except ValueError:
        limit = 2**31
    if not -(2**31) <= limit < 2**31:
        raise NotPossible(
            f"{TIMEOUT} must be a 32-bit integer", got=repr(text), next="set it to -1 or to milliseconds"
        )
    return limit
