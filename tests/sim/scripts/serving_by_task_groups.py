"""A model runner as serving frameworks have it: one graph for each batch size, from one pool. The lengths of
sequences are updated on another stream while the graph waits for them; results go where the runner says.
"""

import proof
import torch
import torch_npu
from torch.nn import functional as F

HEADS, WIDTH, ROOM = 2, 32, 32
SIZES = (4, 2, 1)
torch.manual_seed(0)
weights = [torch.randn(WIDTH, WIDTH).half() / 6 for _ in range(3)]
on_npu = [weight.npu() for weight in weights]
x = torch.zeros(4, 1, WIDTH, dtype=torch.half, device="npu")
at = torch.zeros(4, dtype=torch.int64, device="npu")
keys, values = torch.zeros(4, ROOM, WIDTH).half().npu(), torch.zeros(4, ROOM, WIDTH).half().npu()
FIXED = {
    "num_heads": HEADS, "num_key_value_heads": HEADS, "input_layout": "BSH", "scale": (WIDTH / HEADS) ** -0.5,
}  # fmt: skip


def attend(query, batch, lengths, scratch, out):
    torch_npu.npu_fused_infer_attention_score.out(
        query, keys[:batch], values[:batch], actual_seq_lengths_kv=lengths,
        workspace=scratch, out=out, **FIXED,
    )  # fmt: skip


def captured(batch, pool):
    graph, event, given = torch.npu.NPUGraph(), torch.npu.ExternalEvent(), x[:batch]
    scratch = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        given, keys[:batch], values[:batch], actual_seq_lengths_kv=[ROOM] * batch, **FIXED
    )
    with torch.npu.graph(graph, pool=pool):
        stream = torch.npu.current_stream()
        query, key, value = (given @ weight for weight in on_npu)
        torch_npu.scatter_update_(keys[:batch], at[:batch], key, -2)
        torch_npu.scatter_update_(values[:batch], at[:batch], value, -2)
        out = [torch.empty_like(query), torch.empty(1, device="npu")]
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        attend(query, batch, [ROOM] * batch, scratch, out)
        group = torch.npu.graph_task_group_end(stream)
        result = out[0] + given
    return graph, event, group, query, scratch, out, result


def expected(token, places, seen_keys, seen_values):
    query, key, value = (token.float() @ weight.float() for weight in weights)
    made = []
    for row, place in enumerate(places):
        seen_keys[row, place], seen_values[row, place] = key[row, 0], value[row, 0]
        q, k, v = (
            part.view(-1, HEADS, WIDTH // HEADS).transpose(0, 1)
            for part in (query[row], seen_keys[row, : place + 1], seen_values[row, : place + 1])
        )
        made.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(1, WIDTH))
    return torch.stack(made) + token.float()


pool, updates = torch.npu.graph_pool_handle(), torch.npu.Stream()
graphs = {batch: captured(batch, pool) for batch in SIZES}
host = torch.zeros(4, ROOM, WIDTH), torch.zeros(4, ROOM, WIDTH)
for step, batch in enumerate((4, 2, 1, 2, 4)):
    graph, event, group, query, scratch, out, result = graphs[batch]
    token, places = torch.randn(batch, 1, WIDTH).half(), [row + step for row in range(batch)]
    x[:batch].copy_(token)
    at[:batch].copy_(torch.tensor(places))
    with proof.replayed(1):
        graph.replay()
    with torch.npu.stream(updates):
        torch.npu.graph_task_update_begin(updates, group)
        attend(query, batch, [place + 1 for place in places], scratch, out)
        torch.npu.graph_task_update_end(updates)
        event.record(updates)
    torch.npu.synchronize()
    proof.close(result.float(), expected(token, places, *host), atol=4e-3, rtol=2e-2)

# A graph that finds such calls itself, and memory that is none for the result.
q = torch.randn(2, 1, WIDTH).half().npu()
made, found = [torch.empty_like(q), torch.empty(1, device="npu")], torch.npu.NPUGraph()
with torch.npu.graph(found, auto_dispatch_capture=True):
    attend(q, 2, [3, 3], None, made)
found.update(cpu_update_input=[{"actual_seq_lengths_kv": [5, 4]}])
found.replay()
want, _ = torch_npu.npu_fused_infer_attention_score(
    q, keys[:2], values[:2], actual_seq_lengths_kv=[5, 4], **FIXED
)
proof.close(made[0], want.cpu())
try:
    attend(q, 2, [3, 3], None, [made[0][:1], made[1]])
except RuntimeError as error:
    assert "the memory for it torch.float16[1, 1, 32]" in str(error)
else:
    raise AssertionError("a result was put where it does not fit")
