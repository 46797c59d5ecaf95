"""Caches in pages, written and read by the operators of the `atb` library: prompts whole and in pieces, and a
decode step in a graph, whose lengths are updated.
"""

import proof
import torch
import torch_npu
from torch.nn import functional as F

PAGES, ROWS, HEADS, KV_HEADS, WIDTH = 8, 4, 4, 2, 16
torch.manual_seed(0)
key, value = torch.randn(9, KV_HEADS, WIDTH).half(), torch.randn(9, KV_HEADS, WIDTH).half()
queries = torch.randn(9, HEADS, WIDTH).half()
caches = [torch.zeros(PAGES, ROWS, KV_HEADS, WIDTH).half().npu() for _ in range(2)]
slots = torch.tensor([0, 1, 2, 3, 8, 9, 20, 21, 22], dtype=torch.int32).npu()  # six tokens, and three
pages = torch.tensor([[0, 2], [5, 0]], dtype=torch.int32).npu()
heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "scale_value": WIDTH**-0.5}
torch_npu._npu_reshape_and_cache(
    key=key.npu(), value=value.npu(), key_cache=caches[0], value_cache=caches[1], slot_indices=slots
)


def attended(query, first, last):
    """The last tokens of a sequence to all of them."""
    q, k, v = (x.transpose(0, 1).float() for x in (query, key[first:last], value[first:last]))
    seen = torch.ones(query.shape[0], last - first, dtype=torch.bool).tril(last - first - query.shape[0])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(0, 1)


def close(got, want):
    proof.close(got.float(), want, atol=2e-3, rtol=1e-2)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


whole = torch.cat([attended(queries[:6], 0, 6), attended(queries[6:], 6, 9)])
causal = torch.full((16, 16), float("-inf")).triu(1).half().npu()
for mask in (causal, torch.ones(4, 4).triu(1).bfloat16().npu()):  # the second one is only the pattern
    out = torch.empty(9, HEADS, WIDTH, dtype=torch.half, device="npu")
    torch_npu._npu_flash_attention(
        queries.npu(), key.npu(), value.npu(), mask=mask, seq_len=int32(6, 3), out=out, **heads
    )
    close(out, whole)

for name in ("_npu_flash_attention_qlens", "_npu_paged_attention_splitfuse"):
    out = torch.empty(3, HEADS, WIDTH, dtype=torch.half, device="npu")
    getattr(torch_npu, name)(
        query=queries[[4, 5, 8]].npu(), key_cache=caches[0], value_cache=caches[1], block_table=pages,
        mask=causal, seq_len=int32(2, 1), context_lens=int32(6, 3), out=out, **heads,
    )  # fmt: skip
    close(out, whole[[4, 5, 8]])

out = torch.empty(2, HEADS, WIDTH, dtype=torch.half, device="npu")
call = {
    "query": queries[:2].npu(), "key_cache": caches[0], "value_cache": caches[1], "block_table": pages,
    "out": out, **heads,
}  # fmt: skip
call["workspace"] = torch_npu._npu_paged_attention_get_workspace(context_lens=int32(8, 8), **call)
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    stream = torch.npu.current_stream()
    torch.npu.graph_task_group_begin(stream)
    torch_npu._npu_paged_attention(context_lens=int32(8, 8), **call)
    group = torch.npu.graph_task_group_end(stream)
for first, second in ((2, 1), (5, 3), (6, 2)):
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, group)
        torch_npu._npu_paged_attention(context_lens=int32(first, second), **call)
        torch.npu.graph_task_update_end(stream)
    torch.npu.current_stream().wait_stream(stream)
    with proof.replayed(1):
        graph.replay()
    close(out, torch.cat([attended(queries[:1], 0, first), attended(queries[1:2], 6, 6 + second)]))

angles = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
cos_sin, places = torch.cat([angles.cos(), angles.sin()], -1).npu(), torch.tensor([3, 1])
turn = torch.polar(torch.ones(2, 1, 4), angles[places][:, None])
for is_halved in (True, False):
    x = torch.randn(2, 2, 8)
    pairs = torch.complex(*x.chunk(2, -1)) if is_halved else torch.view_as_complex(x.view(2, 2, 4, 2))
    made = pairs * turn
    want = torch.cat([made.real, made.imag], -1) if is_halved else torch.view_as_real(made).flatten(-2)
    query, other = x.reshape(2, 16).npu(), x[:, 0].contiguous().npu()
    torch_npu._npu_rotary_embedding(places.npu(), query, other, 8, cos_sin, is_halved)
    proof.close(query, want.reshape(2, 16))
    proof.close(other, want[:, 0])
