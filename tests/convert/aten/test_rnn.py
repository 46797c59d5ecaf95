"""Recurrent layers. Dynamic lengths, with weights of fixed size as models have them, are in
`tests/models`.
"""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check, converted


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_lstm_equals_eager(layers: int, bidirectional: bool, bias: bool) -> None:
    net = torch.nn.LSTM(5, 7, layers, bias=bias, bidirectional=bidirectional, batch_first=True).eval()
    weights = [weight.detach() for weight in net._flat_weights]

    def fn(
        x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return torch.lstm(x, [h, c], list(weights), bias, layers, 0.0, False, bidirectional, True)

    states = layers * (2 if bidirectional else 1)
    x, h, c = torch.randn(3, 4, 5), torch.randn(states, 3, 7), torch.randn(states, 3, 7)
    check(fn, x, h, c, *weights)
    graph, *_ = converted(fn, (x, h, c, *weights), dynamic=False)
    cells = [op for op in graph.ops if op.type == "CommonLSTM"]
    assert len(cells) == states
    for op in cells:  # x, w, r, initial_h and initial_c have a dim for the time or the direction
        ranks = {slot.desc.name: slot.tensor.rank for slot in op.slots if slot.tensor is not None}
        assert {name: rank for name, rank in ranks.items() if name != "b"} == dict.fromkeys(
            ("x", "w", "r", "initial_h", "initial_c"), 3
        )
