"""Ops of several families in one model: compiled by Inductor, exported; refused where our table is old."""

from __future__ import annotations

import pytest
import torch

import torchair
from tests.ops.compiled import MODES, ints, rand
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.npu.rows import from_rows
from torchair.ops import npu as library

npu = torch.ops.npu


class Layer(torch.nn.Module):
    """Norm, quantised product, cache, gate."""

    def forward(self, x, residual, gamma, cache, index, weight, scale):
        y, _, residual = npu.npu_add_rms_norm(x, residual, gamma)
        rows, row_scale = npu.npu_dynamic_quant(y)
        y = npu.npu_quant_matmul(rows, weight, scale, pertoken_scale=row_scale, output_dtype=6)
        npu.scatter_update_(cache, index, y.view(3, 2, 1, 4), -2)
        return npu.npu_swiglu(y), residual, cache.sum(-1)


def inputs():
    weight = ints(-99, 99, 16, 8, dtype=torch.int8)
    x, residual, gamma = rand(3, 16).half(), rand(3, 16, seed=1).half(), rand(16).half()
    return x, residual, gamma, rand(3, 2, 8, 4), torch.tensor([1, 2, 7]), weight, rand(8) / 99


@pytest.mark.parametrize("mode", MODES)
def test_ops_of_several_families_compile_with_inductor(mode):
    torch._dynamo.reset()
    config = CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "inductor"
    compiled = torch.compile(
        Layer(), backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True
    )
    ours, theirs = inputs(), inputs()
    # What is fused is not rounded to 16 bits on the way.
    with torch.no_grad():
        torch.testing.assert_close(compiled(*ours), Layer()(*theirs), rtol=1e-2, atol=0.1)
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-2, atol=0.1)


# torch.export itself still asks for leaves in the old way.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_exported_graphs_keep_the_ops():
    program = torch.export.export(Layer(), inputs()).run_decompositions({})
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"npu.npu_add_rms_norm.default", "npu.scatter_update.default", "npu.npu_swiglu.default"} <= targets
    ours, theirs = inputs(), inputs()
    torch.testing.assert_close(tuple(program.module()(*ours)), Layer()(*theirs))
    torch.testing.assert_close(ours[3], theirs[3])


def test_a_newer_plug_in_is_not_misread():
    rows = [row for row in library.ROWS if row.op == "npu_swiglu"]
    with pytest.raises(NotImplementedError, match="no_such_argument"):
        from_rows("npu_swiglu", rows)(None, no_such_argument=1)
