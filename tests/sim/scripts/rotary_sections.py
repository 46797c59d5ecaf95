"""Multimodal rotary positions in a graph, as models of vision and language have them."""

import proof
import torch
import torch_npu


def turn(positions, query, key, cache):
    query, key = torch_npu.npu_mrope(
        positions, query, key, cache, 8, mrope_section=[2, 1, 1], rotary_mode="half"
    )
    return query + 1, key * 2


positions = torch.tensor([[0, 1, 2], [0, 1, 1], [0, 2, 1]])
query, key, cache = torch.randn(3, 16), torch.randn(3, 8), torch.randn(4, 8)
given = [each.npu() for each in (positions, query, key, cache)]
parts = [cache[positions][row, :, first:last] for row, first, last in ((0, 0, 2), (1, 2, 3), (2, 3, 4))]
cos = torch.cat(parts, -1).unsqueeze(1)
sines = [cache[positions][row, :, first:last] for row, first, last in ((0, 4, 6), (1, 6, 7), (2, 7, 8))]
sin = torch.cat(sines, -1).unsqueeze(1)
one, two = query.unflatten(1, (2, 8)).chunk(2, -1)
want = torch.cat([one * cos - two * sin, two * cos + one * sin], -1).flatten(1) + 1
step = torch.compile(turn, backend="npugraph_ex", dynamic=False, fullgraph=True)
with proof.compiled(), proof.replayed(2):
    for _ in range(3):
        proof.close(step(*given)[0], want)
