"""Encoder, decoder and cross attention of torch.nn, compiled in one piece."""

import copy

import proof
import torch
import torch_npu

import torchair

torch.manual_seed(0)
host = torch.nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True).eval()
model = copy.deepcopy(host).npu()
source, target = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
torch.backends.mha.set_fastpath_enabled(False)  # one op of torch for a whole layer
want = host(source, target, tgt_mask=mask, tgt_is_causal=True)
opt = torch.compile(model, backend=torchair.get_npu_backend(), dynamic=False)
with torch.no_grad(), proof.replayed(2):
    for _ in range(3):
        got = opt(source.npu(), target.npu(), tgt_mask=mask.npu(), tgt_is_causal=True)
        proof.close(got, want, rtol=1e-4, atol=1e-5)
