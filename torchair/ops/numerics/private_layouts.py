"""Private layouts of Ascend devices: weights cut into blocks, as matrix units read them.

A private layout is a property of the device: sizes, strides and values of the tensor stay what they were.
CPU and CUDA have none, so that there a cast to one is the tensor itself.
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
    """One group of channels, and a weight of this type."""

    def applies(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        return weight is not None and getattr(module, "groups", 1) == 1 and weight.dtype == dtype

    return applies


@dataclass(frozen=True)
class LayoutRule:
    """Modules of a class (by its name, as the packages that have it need not be there), and the layout of
    their weights.
    """

    package: str
    name: str
    layout: int
    applies: Callable[[nn.Module], bool] = _always
    refuses_host: bool = True
    """Is a weight on the CPU a mistake?"""
    packs_scale: bool = False
    """Is a scale in float32 packed into the device's own form?"""


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
    """Give the weights of linear and convolution layers the private layout of the device they are on; to be
    called after the model was moved there, before it is compiled.

    Without `torch_npu` there is no such layout: the log says so, and the model stays as it is.
    """
    plugin = sys.modules.get(PLUGIN)
    if plugin is None:
        logger.error("use_internal_format_weight: %s is not imported, weights stay as they are", PLUGIN)
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
    """The modules with a rule, and the first that serves; subclasses count."""
    for name, module in model.named_modules():
        kinds = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(module).__mro__}
        for rule in RULES:
            if (rule.package.split(".")[0], rule.name) in kinds and rule.applies(module):
                yield name, module, rule
                break


def npu_format_cast(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """The tensor in another layout of the device. CPU and CUDA have one layout, so that it is the tensor as
    it was.
    """
    if self.device.type != NPU:
        return self
    return importlib.import_module(PLUGIN).npu_format_cast(self, acl_format, customize_dtype)


def npu_format_cast_via_cpu(
    self: torch.Tensor, acl_format: int, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """An int8 matrix in the block layout 29, of the same logical shape, as a new tensor; for devices that
    cannot change the layout themselves. The current stream is waited for first, `ACL_STREAM_TIMEOUT`
    milliseconds at most. The last two arguments change nothing.
    """
    why = _why_not_blocked(self, acl_format)
    if why:
        raise NotPossible(
            f"npu_format_cast_via_cpu cannot do this: {why}",
            got=f"{self.dtype}{list(self.shape)}, acl_format {acl_format}",
            next="pass an int8 tensor of two or more dims, and acl_format 29",
        )
    _synchronize(self.device)
    if self.device.type != NPU:
        return self.clone()
    return npu_format_cast(self.cpu().to(self.device), acl_format)


def _why_not_blocked(x: torch.Tensor, acl_format: int) -> str:
    if acl_format != FRACTAL_NZ:
        return f"the only layout is {FRACTAL_NZ}"
    if x.dtype != torch.int8:
        return "only int8 has this layout"
    if x.dim() < 2:
        return "a matrix has two dims"
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
            raise NotPossible(f"the stream was not done within {limit} ms", next=f"raise {TIMEOUT}")
        time.sleep(0.0005)


def _timeout() -> int:
    text = text_of(TIMEOUT)
    try:
        limit = int(text)
    except ValueError:
        limit = 2**31
    if not -(2**31) <= limit < 2**31:
        raise NotPossible(
            f"{TIMEOUT} is no 32-bit integer", got=repr(text), next="set it to -1 or to milliseconds"
        )
    return limit
