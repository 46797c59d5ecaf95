"""Recurrent layers on CUDA stay one op.

torch traces an RNN on CUDA as a loop over the time steps: a graph per length, thousands of nodes. For
inference cuDNN's own op stands for the whole stack of layers, as in eager.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.torch_private import OpOverload, traced_as

aten = torch.ops.aten

# The ops and their mode numbers in cuDNN.
MODES: dict[OpOverload, int] = {
    aten.rnn_relu.input: 0,
    aten.rnn_tanh.input: 1,
    aten.lstm.input: 2,
    aten.gru.input: 3,
}


def whole_layers() -> contextlib.AbstractContextManager[None]:
    """Inside, RNNs on CUDA are traced as one op where cuDNN can serve them."""
    return traced_as({op: functools.partial(_run, mode) for op, mode in MODES.items()})


def _run(
    mode: int,
    loop: Callable[..., Any],
    input: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    hidden, cell = hx if isinstance(hx, Sequence) else (hx, None)
    serves = (
        input.device.type == "cuda"
        and torch.backends.cudnn.enabled
        and input.is_floating_point()
        and not torch.is_grad_enabled()
        and not train
    )
    if not serves:
        return loop(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    # The weights come one by one and are packed in each call. Nobody who reads the warning could change that.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    width = (hidden if cell is None else cell).shape[2]
    projected = hidden.shape[2] if hidden.shape[2] != width else 0
    stride = (4 if has_biases else 2) + (1 if projected else 0)
    output, last_hidden, last_cell, _, _ = aten._cudnn_rnn(
        input.contiguous(),
        list(params),
        stride,
        None,
        hidden.contiguous(),
        None if cell is None else cell.contiguous(),
        mode,
        width,
        projected,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        [],
        None,
    )
    return (output, last_hidden) if cell is None else (output, last_hidden, last_cell)
