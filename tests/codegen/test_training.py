"""Forward and backward graphs as AOTAutograd makes them, compiled by each kind, against eager's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

from torchair.codegen import CodegenOptions, build
from torchair.core.errors import NotPossible
from torchair.core.program import Program
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.core.torch_private.fake.fake_tensors import make_fx


def backend(kind: str, seen: list[Program]) -> Any:
    def compiler(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        program = build(kind, gm, inputs, CodegenOptions(**options))
        seen.append(program)

        def boxed(args: list[Any]) -> list[Any]:
            return program(args)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    return aot_autograd(
        fw_compiler=partial(compiler, inference=False),
        bw_compiler=partial(compiler, inference=False, backward=True),
        inference_compiler=compiler,
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("kind", ["eager", "inductor"])
def test_training_and_inference(kind: str) -> None:
    seen: list[Program] = []
    model = Small()
    twin = Small()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=backend(kind, seen), dynamic=True)
    for batch in (6, 9):
        x = torch.randn(batch, 4)
        compiled(x).square().sum().backward()
        twin(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    model.eval(), twin.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), twin(x))
    assert len(seen) == 3
    assert {program.kind for program in seen} == {kind}


def test_statistics_of_attention_that_torch_mistakes() -> None:
    """As torch before 2.12 tells them: no code is made that reads doubles as floats."""

    def attend(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)

    q = torch.ones(1, 2, 4, 8, dtype=torch.float64)
    gm = make_fx(attend, tracing_mode="fake")(q)
    build("inductor", gm, [q])
    (node,) = gm.graph.find_nodes(op="call_function", target=ATTENTION)
    result, statistics = node.meta["val"]
    node.meta["val"] = (result, statistics.float())
    with pytest.raises(NotPossible, match="the fake kernel of attention"):
        build("inductor", gm, [q])


ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
