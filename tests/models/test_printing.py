"""Hidden states of a model that nobody here wrote, printed from hooks: in both modes what eager prints."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.models.test_decode import MODES, backend, prompt, tiny_llama
from torchair.ops import npu_print

NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


@pytest.mark.parametrize("mode", MODES.values())
def test_printed_hidden_states_equal_eager(mode: str, capsys: Any) -> None:
    model = tiny_llama()
    for place, layer in enumerate(model.model.layers):

        def tell(module: Any, args: Any, output: Any, place: int = place) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            npu_print("layer", place, hidden, summarize_size=1, tensor_detail=True)

        layer.register_forward_hook(tell)

    tokens = prompt()
    with torch.no_grad():
        model(tokens, use_cache=False)
        want = capsys.readouterr().out
        run = torch.compile(model, backend=backend(mode, "eager"), fullgraph=True, dynamic=False)
        for _ in range(3):
            capsys.readouterr()
            run(tokens, use_cache=False)
            told = capsys.readouterr().out
            assert NUMBER.sub("", told) == NUMBER.sub("", want)
            got = torch.tensor([float(x) for x in NUMBER.findall(told)])
            torch.testing.assert_close(got, torch.tensor([float(x) for x in NUMBER.findall(want)]))
    assert want.count("layer") == len(model.model.layers)
    assert f"shape=[1, {tokens.shape[1]}, {model.config.hidden_size}], dtype=torch.float32)" in want
