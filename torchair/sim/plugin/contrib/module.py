"""Provide `torch_npu.contrib.module`: layers in forms that the hardware prefers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torchair.sim.npu.streams import Stream, current_stream, stream

__all__ = [
    "ChannelShuffle",
    "DropoutWithByteMask",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearWeightQuant",
    "Mish",
    "Prefetcher",
    "SiLU",
    "Swish",
]


class Mish(nn.Mish):
    """`torch.nn.Mish`."""


class SiLU(nn.SiLU):
    """`torch.nn.SiLU`."""


Swish = SiLU


class DropoutWithByteMask(nn.Dropout):
    """`torch.nn.Dropout`; on the hardware, the mask has one byte per value."""


class ChannelShuffle(nn.Module):
    """Shuffle the channels of two tensors in groups; returns two tensors unless `split_shuffle` is off."""

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        self.split_shuffle = split_shuffle
        self.group_len = in_channels // groups

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> Any:
        whole = torch.cat([x1, x2], 1)
        dealt = whole.unflatten(1, (-1, self.group_len)).transpose(1, 2).flatten(1, 2)
        return dealt.chunk(2, 1) if self.split_shuffle else dealt


class LabelSmoothingCrossEntropy(nn.Module):
    """Cross entropy with label smoothing."""

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.on_value = 1.0 - smooth_factor
        self.off_value = smooth_factor / (num_classes - 1)

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        target = torch.ops.npu.npu_one_hot(target, -1, self.num_classes, self.on_value, self.off_value)
        return -(target * pred.log_softmax(-1)).sum(-1).mean()


class Prefetcher:
    """Iterate over the batches of a loader and copy the next batch during the work on the current one."""

    def __init__(self, loader: Iterable[Any], stream: Stream | None = None) -> None:
        self.loader = iter(loader)
        self.stream = Stream() if stream is None else stream
        self.preload()

    def preload(self) -> None:
        """Start to copy the next batch."""
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with stream(self.stream):
            self.next_input = self.next_input.to("npu", non_blocking=True)
            self.next_target = self.next_target.to("npu", non_blocking=True)

    def next(self) -> tuple[Any, Any]:
        """Return input and target of the next batch; None and None after the last."""
        current_stream().wait_stream(self.stream)
        batch = self.next_input, self.next_target
        for each in batch:
            if each is not None:
                each.record_stream(current_stream())
        self.preload()
        return batch


def _given(*size: int, dtype: torch.dtype, device: Any) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size, dtype=dtype, device=device), requires_grad=False)


class LinearA8W8Quant(nn.Module):
    """Multiply quantized int8 inputs with int8 weights: `npu_quant_matmul`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: Any = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.output_dtype = in_features, out_features, output_dtype
        self.weight = _given(out_features, in_features, dtype=torch.int8, device=device)
        self.scale = _given(out_features, dtype=torch.float32, device=device)
        self.offset = _given(out_features, dtype=torch.float32, device=device) if offset else None
        self.pertoken_scale = (
            _given(out_features, dtype=torch.float32, device=device) if pertoken_scale else None
        )
        self.bias = _given(out_features, dtype=torch.int32, device=device) if bias else None

    def forward(self, linear_quant_input: torch.Tensor) -> torch.Tensor:
        scale = self.scale
        if scale.dtype == torch.float32 and self.output_dtype not in (torch.bfloat16, torch.int32):
            scale = torch.ops.npu.npu_trans_quant_param(scale, self.offset)
        return torch.ops.npu.npu_quant_matmul(
            linear_quant_input,
            self.weight.transpose(0, 1),
            scale,
            offset=self.offset,
            pertoken_scale=self.pertoken_scale,
            bias=self.bias,
            output_dtype=self.output_dtype,
        )


class LinearWeightQuant(nn.Module):
    """Multiply with int8 weights that are dequantized first: `npu_weight_quant_batchmatmul`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
    ) -> None:
        super().__init__()
        dtype = torch.float16 if dtype is None else dtype
        self.in_features, self.out_features = in_features, out_features
        self.antiquant_group_size, self.inner_precise = antiquant_group_size, inner_precise
        groups = -(-in_features // antiquant_group_size) if antiquant_group_size else 1
        size = (out_features, groups) if antiquant_group_size else (out_features, 1)
        self.weight = _given(out_features, in_features, dtype=torch.int8, device=device)
        self.antiquant_scale = _given(*size, dtype=dtype, device=device)
        self.antiquant_offset = _given(*size, dtype=dtype, device=device) if antiquant_offset else None
        self.quant_scale = (
            _given(1, out_features, dtype=torch.float32, device=device) if quant_scale else None
        )
        self.quant_offset = (
            _given(1, out_features, dtype=torch.float32, device=device) if quant_offset else None
        )
        kind = torch.float32 if dtype == torch.bfloat16 else dtype
        self.bias = _given(out_features, dtype=kind, device=device) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def turned(part: torch.Tensor | None) -> torch.Tensor | None:
            return None if part is None else part.transpose(0, 1)

        return torch.ops.npu.npu_weight_quant_batchmatmul(
            x,
            self.weight.transpose(0, 1),
            turned(self.antiquant_scale),
            turned(self.antiquant_offset),
            self.quant_scale,
            self.quant_offset,
            self.bias,
            self.antiquant_group_size,
            self.inner_precise,
        )
