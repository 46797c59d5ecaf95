"""Operators of the npu library, called as attributes of the plug-in."""

import proof
import torch
import torch_npu

x, gamma = torch.randn(2, 8), torch.randn(8)
want = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gamma
proof.close(torch_npu.npu_rms_norm(x.npu(), gamma.npu(), epsilon=1e-6)[0], want)
assert torch_npu.npu_rms_norm is torch.ops.npu.npu_rms_norm
left, right = x.chunk(2, -1)
proof.close(torch_npu.npu_swiglu(x.npu(), dim=-1), torch.nn.functional.silu(left) * right)
q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
out, _ = torch_npu.npu_fused_infer_attention_score(
    q.npu(), k.npu(), v.npu(), num_heads=2, scale=8**-0.5, input_layout="BNSD"
)
proof.close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v), rtol=1e-4, atol=1e-5)
cache, update = torch.zeros(2, 6, 4), torch.ones(2, 1, 4)
given = cache.npu()
index = torch.tensor([1, 3])
torch_npu.scatter_update_(given, index.npu(), update.npu(), -2)
for row, at in enumerate(index.tolist()):
    cache[row, at] = 1
proof.close(given, cache)
try:
    torch_npu.npu_no_such_op  # noqa: B018
except AttributeError as error:
    assert "npu_no_such_op" in str(error)
else:
    raise AssertionError
