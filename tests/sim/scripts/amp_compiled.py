"""Autocast inside a compiled model: matrices in bfloat16, the softmax in float32."""

import proof
import torch
import torch_npu

import torchair


def attend(q, k):
    with torch.autocast("npu", dtype=torch.bfloat16):
        scores = q @ k.transpose(-1, -2)
        return scores, scores.softmax(-1)


q, k = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
opt = torch.compile(attend, backend=torchair.get_npu_backend(), fullgraph=True)
with proof.compiled(), proof.replayed():
    for _ in range(3):
        scores, weights = opt(q.npu(), k.npu())
assert scores.dtype == torch.bfloat16
assert weights.dtype == torch.float32
want = q.bfloat16() @ k.bfloat16().transpose(-1, -2)
proof.close(scores, want)
proof.close(weights, want.float().softmax(-1))
