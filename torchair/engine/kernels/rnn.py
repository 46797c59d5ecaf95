"""Recurrent layers."""

from __future__ import annotations

import torch

from torchair.engine.registry import kernel

# Positions of torch's gates (input, forget, cell, output) among CommonLSTM's (input, output, forget, cell).
TO_IFGO = (0, 2, 3, 1)
LSTM = 2
"""The mode number of an LSTM among torch's RNN kinds."""


@kernel("CommonLSTM")
def common_lstm(
    x,
    w,
    r,
    b,
    sequence_lens,
    initial_h,
    initial_c,
    p,
    *,
    activations,
    clip,
    direction,
    hidden_size,
    input_forget,
):
    """Run an LSTM over [time, batch, features], as ONNX defines it; y is [time, directions, batch, hidden].

    Weights are [directions, 4·hidden, …] with gates in the order input, output, forget, cell; the bias has
    the input's part, then the recurrent part.
    """
    assert sequence_lens is None and p is None, "torchair emits no lengths and no peepholes"
    assert not activations and clip == -1.0 and not input_forget, "torchair emits only the plain cell"
    assert direction in ("forward", "reverse"), "each direction is a separate layer"
    assert initial_h is not None and initial_c is not None, "the initial states are always given"
    weights = [_gates(w[0]), _gates(r[0])]
    weights += [_gates(part) for part in b[0].chunk(2)] if b is not None else []
    steps = x.flip(0) if direction == "reverse" else x
    y, h, c = _layer(steps, initial_h, initial_c, weights, hidden_size)
    y = y.flip(0) if direction == "reverse" else y
    return y.unsqueeze(1), h, c


def _layer(x, h, c, weights, hidden_size):
    """Run one forward layer with states [1, batch, hidden].

    On the CPU this is oneDNN's layer, as in ATen; it reads plain memory, whatever the strides.
    """
    if x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return torch.lstm(x, [h, c], weights, len(weights) == 4, 1, 0.0, False, False, False)
    biases = weights[2:] or [x.new_zeros(4 * hidden_size)] * 2
    states = (h[0].contiguous(), c[0].contiguous())
    y, last_h, last_c, _ = torch.ops.aten.mkldnn_rnn_layer(
        x.contiguous(), *weights[:2], *biases, *states, False, [], LSTM, hidden_size, 1,
        len(weights) == 4, False, False, False,
    )  # fmt: skip
    return y, last_h.unsqueeze(0), last_c.unsqueeze(0)


def _gates(weight):
    """Return the rows in torch's order of gates."""
    chunks = weight.chunk(4)
    return torch.cat([chunks[number] for number in TO_IFGO])
