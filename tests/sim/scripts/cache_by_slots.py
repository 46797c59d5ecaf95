"""Decoding into a paged cache: rows are written by slot, through a view, and attention reads the pages."""

import proof
import torch
import torch_npu

import torchair

HEADS, WIDTH, PAGE = 2, 32, 8


def step(q, k, v, keys, values, slots, pages):
    torch_npu.npu_scatter_nd_update_(keys.view(-1, WIDTH), slots[:, None], k)
    torch_npu.npu_scatter_nd_update_(values.view(-1, WIDTH), slots[:, None], v)
    return torch_npu.npu_fused_infer_attention_score(
        q[:, None], keys, values, num_heads=HEADS, input_layout="BSH", scale=0.25, block_table=pages,
        block_size=PAGE, actual_seq_lengths_kv=[3, 3],
    )[0]  # fmt: skip


torch.manual_seed(0)
pages = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device="npu")
slots = [torch.tensor([at, 2 * PAGE + at], device="npu") for at in range(3)]
rows = [torch.randn(3, 2, WIDTH, device="npu").half() for _ in slots]


def decode(step):
    cache = torch.zeros(2, 4, PAGE, WIDTH, dtype=torch.float16, device="npu")
    return [step(*row, *cache, slot, pages).cpu() for row, slot in zip(rows, slots, strict=True)], cache.cpu()


want, cache = decode(step)
for mode in ("max-autotune", "npugraph_ex"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    opt = torch.compile(step, backend=npu_backend, dynamic=False, fullgraph=True)
    with torch.no_grad(), proof.compiled(), proof.replayed(2):
        got, written = decode(opt)
    assert torch.equal(written, cache)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
