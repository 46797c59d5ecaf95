"""Recurrent layers."""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.registry import converter

aten = torch.ops.aten

LSTM = 2
"""The mode number of an LSTM among torch's RNN kinds."""
TO_IOFC = (0, 3, 1, 2)
"""Positions of CommonLSTM's gates (input, output, forget, cell) among torch's (input, forget, cell,
output).
"""


def why_not_lstm(
    input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, batch_sizes, mode, hidden_size,
    num_layers, has_biases, bidirectional, batch_first, train,
):  # fmt: skip
    """Return why a layer is not supported; only the LSTM for inference is.

    Other kinds, packed sequences and training need results that the IR op does not return.
    """
    if mode != LSTM:
        return "only LSTM layers have an IR op"
    if batch_sizes:
        return "packed sequences have a batch size per step"
    return "training needs the layer's workspace" if train else None


@converter(aten.mkldnn_rnn_layer.default, only=why_not_lstm)
def mkldnn_rnn_layer(
    input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, batch_sizes, mode, hidden_size,
    num_layers, has_biases, bidirectional, batch_first, train,
):  # fmt: skip
    """Run one direction of one LSTM layer over [time, batch, features]; the last result is an empty
    workspace.

    States are [batch, hidden], or have the layer as an additional first dim.
    """
    is_of_layer = hx_.rank == 3
    bias = None
    if has_biases:
        bias = ge.Unsqueeze(
            ge.ConcatV2([_gates(weight2, hidden_size), _gates(weight3, hidden_size)], 0, N=2), axes=[0]
        )
    y, hidden, cell = ge.CommonLSTM(
        input,
        ge.Unsqueeze(_gates(weight0, hidden_size), axes=[0]),
        ge.Unsqueeze(_gates(weight1, hidden_size), axes=[0]),
        bias,
        None,
        *(state if is_of_layer else ge.Unsqueeze(state, axes=[0]) for state in (hx_, cx_)),
        direction="reverse" if reverse else "forward",
        hidden_size=hidden_size,
    )
    last = (state if is_of_layer else ge.Squeeze(state, axis=[0]) for state in (hidden, cell))
    return ge.Squeeze(y, axis=[1]), *last, ge.Const(torch.empty(0, dtype=torch.uint8), readable=False)


def _gates(weight, hidden_size):
    """Return the rows of a weight or bias in CommonLSTM's order of gates."""
    chunks = ge.SplitV(weight, [hidden_size] * 4, 0, num_split=4, outputs=4)
    return ge.ConcatV2([chunks[number] for number in TO_IOFC], 0, N=4)
