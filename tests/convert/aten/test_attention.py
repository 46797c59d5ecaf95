"""Attention: fused ATen calls and GE's own modes, against eager and against the formula."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from tests.convert.harness import OLD, check, converted
from tests.support.slow import slow
from torchair import ge
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret
from torchair.fxgraph.layout import layout_of
from torchair.ge.graph import ArgumentFeed, Graph, TensorResult
from torchair.ge.schema import op_dtypes

aten = torch.ops.aten
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
HEADS, DIM = 4, 8


def rand(*shape, dtype=f32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def heads(x, count=HEADS):
    """[batch, length, width] as [batch, heads, length, dim]; heads and dim are never symbols."""
    return x.view(x.shape[0], x.shape[1], count, DIM).transpose(1, 2)


def attend(q, k, v):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v))


def attend_masked(q, k, v, mask):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), attn_mask=mask)


def attend_scaled(q, k, v):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), scale=0.3)


def attend_causal(q, k, v):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)


def inputs(dtype=f32, keys=6):
    return [rand(2, length, HEADS * DIM, dtype=dtype) for length in (6, keys, keys)]


MASKS = {
    "bool": rand(2, 1, 6, 6) > 0.3,
    "bool_2d": rand(6, 6) > -0.5,
    "bool_row_hidden": torch.ones(6, 6).tril(-1).bool(),
    "bool_keys_only": rand(2, 1, 1, 6) > -1,
    "bool_per_head": rand(2, HEADS, 6, 6) > -1,
    "float": rand(2, 1, 6, 6),
    "float_2d": rand(6, 6),
    "float_per_head": rand(1, HEADS, 6, 6),
}
# Low precision: the fused kernel keeps its sums in float32, and both sides call it.
DTYPES = [f32, bf16, f16]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [attend, attend_causal])
def test_attention_without_mask_equals_eager(fn, dtype, dynamic):
    report = check(fn, *inputs(dtype), dynamic=dynamic)
    assert report.converted["aten._scaled_dot_product_flash_attention_for_cpu.default"] == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_mask_equals_eager(mask, dynamic):
    check(attend_masked, *inputs(), MASKS[mask], dynamic=dynamic)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_masks_in_half_precision(dtype):
    check(attend_masked, *inputs(dtype), MASKS["bool"])
    check(attend_masked, *inputs(dtype), MASKS["float"].to(dtype))


def test_keys_of_another_length_and_a_scale():
    check(attend_scaled, *inputs(keys=9))
    check(attend_scaled, *inputs(keys=9), dynamic=True)


def test_shared_key_heads():
    q, k, v = rand(2, 6, HEADS * DIM), rand(2, 6, 2 * DIM), rand(2, 6, 2 * DIM)

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(heads(q), heads(k, 2), heads(v, 2), enable_gqa=True)

    check(grouped, q, k, v)
    check(grouped, q, k, v, dynamic=True)


def test_a_boolean_mask_reaches_ge_as_hidden_positions():
    graph, *_ = converted(attend_masked, [*inputs(), MASKS["bool"]])
    (op,) = [op for op in graph.ops if op.type == "PromptFlashAttention"]
    arguments = op.arguments()
    assert arguments["atten_mask"].dtype == ge.DataType.DT_BOOL
    assert arguments["pse_shift"] is None
    assert op.attributes()["sparse_mode"] == 1


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_log_sum_exp_is_made_only_when_it_is_read(dtype):
    graph, *_ = converted(attend, inputs(dtype))
    assert not any(op.attributes().get("softmax_lse_flag") for op in graph.ops)

    def with_lse(q, k, v):
        return aten._scaled_dot_product_flash_attention_for_cpu(heads(q), heads(k), heads(v), 0.0, True)

    check(with_lse, *inputs(dtype))
    check(with_lse, *inputs(dtype), dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("is_causal", "mask"), [(True, None), (False, None), (False, "float"), (False, "hidden")]
)
def test_attention_gradient_equals_eager(is_causal, mask, dynamic):
    given = (
        None
        if mask is None
        else torch.where(MASKS["bool"], 0.0, -torch.inf)
        if mask == "hidden"
        else MASKS[mask]
    )

    def gradients(grad, q, k, v, mask):
        q, k, v = heads(q), heads(k), heads(v)
        extra = {} if given is None else {"attn_mask": mask}
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, **extra)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            heads(grad), q, k, v, out, lse, 0.0, is_causal, **extra
        )

    mask = torch.zeros(6, 6) if given is None else given
    check(gradients, rand(2, 6, HEADS * DIM), *inputs(), mask, dynamic=dynamic)


@pytest.mark.parametrize("given", ["nothing", "causal", "bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16), slow(torch.float64)])
def test_heads_that_are_symbols(given, dtype):
    """Written out in plain ops; doubles are too."""
    if dtype == torch.float64 and OLD:
        pytest.skip("fake tensors of this torch say float32 of its statistics, which are doubles")
    q, k, v = (rand(2, HEADS, 6, DIM).to(dtype) for _ in range(3))
    mask = {"bool": rand(6, 6) > 0, "float": rand(6, 6).to(dtype)}.get(given)
    if given == "bool":
        mask[0] = False

    def both(grad, q, k, v, mask):
        extra = {"attn_mask": mask} if given in ("bool", "float") else {}
        if extra and mask.dtype == torch.bool:
            extra = {"attn_mask": torch.where(mask, 0.0, -torch.inf).to(q.dtype)}
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, given == "causal", **extra)
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return out, *back(grad, q, k, v, out, lse, 0.0, given == "causal", **extra)

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    mask = torch.zeros(6, 6) if mask is None else mask
    check(both, q, q, k, v, mask, dynamic=True, **tolerance)


def run_ir_op(op, arguments, attrs, outputs=1):
    """One IR op on real tensors; a tuple of numbers is a constant."""
    mode = torch._subclasses.FakeTensorMode()
    graph = Graph("one", inference(mode, torch.device("cpu")))
    given = []

    def feed(value):
        if isinstance(value, list):
            return [feed(item) for item in value]
        if value is None or isinstance(value, tuple):
            return value
        data = ge.Data(index=len(given), node_name=f"arg{len(given)}")
        graph.feeds[data.op.name] = ArgumentFeed(len(given))
        data.meta = mode.from_tensor(value)
        given.append(value)
        return data

    # Kernels take more types than the ops of Ascend do: these tests want more digits than halves have.
    with graph, mock.patch.object(op_dtypes, "casts", return_value={}):
        made = getattr(ge, op)(*[feed(value) for value in arguments], **attrs)
        made = made if isinstance(made, tuple) else (made,)
        ge.NetOutput(list(made[:outputs]), node_name="NetOutput")
    graph.results = [
        TensorResult(tensor, layout_of(tensor.meta, place)) for place, tensor in enumerate(made[:outputs])
    ]
    return interpret(graph, given, torch.device("cpu"))


def formula(q, k, v, seen, scale, shift=0.0):
    """Attention written out; rows that see nothing are 0."""
    scores = scale * (q @ k.mT) + shift
    scores = scores.masked_fill(~seen, -math.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v, torch.logsumexp(scores, -1, keepdim=True)


def positions(rows, columns):
    return torch.arange(rows)[:, None], torch.arange(columns)


MODES = {
    0: lambda i, j, rows, columns: (j - i >= -2) & (j - i <= 1),
    1: lambda i, j, rows, columns: j >= 0,
    2: lambda i, j, rows, columns: j <= i,
    3: lambda i, j, rows, columns: j <= i + columns - rows,
    4: lambda i, j, rows, columns: (j - i - columns + rows >= -2) & (j - i - columns + rows <= 1),
}


@pytest.mark.parametrize("with_shift", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_mask_modes_of_fused_infer_attention(mode, with_shift):
    q, k, v = rand(2, 4, 5, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 8)
    i, j = positions(5, 7)
    seen = MODES[mode](i, j, 5, 7).expand(5, 7)
    hidden = rand(2, 1, 5, 7) > 0.8 if mode in (0, 1) else torch.ones(2048, 2048).triu(1).bool()
    seen = seen & ~hidden if mode in (0, 1) else seen
    shift = rand(1, 4, 5, 7) if with_shift else None
    attrs = {
        "num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": 0.4, "sparse_mode": mode,
        "pre_tokens": 2, "next_tokens": 1, "softmax_lse_flag": True,
    }  # fmt: skip
    out, lse = run_ir_op("FusedInferAttentionScore", [q, [k], [v], shift, hidden], attrs, outputs=2)
    whole = [x.repeat_interleave(2, 1) for x in (k, v)]
    expected, expected_lse = formula(q, *whole, seen, 0.4, 0.0 if shift is None else shift)
    torch.testing.assert_close(out, expected)
    visible = torch.isfinite(expected_lse)
    torch.testing.assert_close(lse[visible], expected_lse[visible])


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD_BSND", "BSH_BNSD"])
def test_layouts_and_lengths(layout):
    q, k, v = rand(2, 4, 5, 8), rand(2, 4, 7, 8), rand(2, 4, 7, 8)
    entry, _, leaving = layout.partition("_")
    to = {
        "BNSD": lambda x: x,
        "BSND": lambda x: x.transpose(1, 2),
        "BSH": lambda x: x.transpose(1, 2).flatten(2),
    }
    rows, columns = torch.tensor([5, 3]), torch.tensor([7, 4])
    attrs = {"num_heads": 4, "input_layout": layout, "scale": 0.4}
    given = [to[entry](q), [to[entry](k)], [to[entry](v)], None, None, rows, columns]
    (out,) = run_ir_op("FusedInferAttentionScore", given, attrs)
    expected, _ = formula(q, k, v, torch.arange(7) < columns[:, None, None, None], 0.4)
    expected = torch.where(torch.arange(5)[:, None] < rows[:, None, None, None], expected, 0.0)
    torch.testing.assert_close(out, to[leaving or entry](expected))


def test_the_gradient_of_a_shift():
    q, k, v, dy, shift = (
        rand(1, 2, 5, 8),
        rand(1, 2, 5, 8),
        rand(1, 2, 5, 8),
        rand(1, 2, 5, 8),
        rand(1, 2, 5, 5),
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v, shift)]
    out, lse = formula(*leaves[:3], torch.ones(5, 5).bool(), 0.4, leaves[3])
    expected = torch.autograd.grad(out, leaves, dy)
    statistics = lse.detach().expand(-1, -1, -1, 8)
    given = [
        q,
        k,
        v,
        dy,
        shift,
        None,
        None,
        None,
        statistics,
        torch.ones_like(statistics),
        None,
        out.detach(),
    ]
    attrs = {"head_num": 2, "input_layout": "BNSD", "scale_value": 0.4}
    got = run_ir_op("FlashAttentionScoreGrad", given, attrs, outputs=4)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
