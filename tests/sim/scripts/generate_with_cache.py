"""A greedy loop with a KV cache that each step updates in place, in both modes: tokens are those of eager."""

import proof
import torch
import torch_npu

import torchair

HEADS, DIM, LENGTH, WORDS = 2, 8, 16, 32


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, HEADS * DIM)
        self.qkv = torch.nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.out = torch.nn.Linear(HEADS * DIM, WORDS)

    def forward(self, token, position, keys, values):
        q, k, v = self.qkv(self.embed(token)).view(3, HEADS, DIM).unbind(0)
        keys.index_copy_(0, position, k.unsqueeze(0))
        values.index_copy_(0, position, v.unsqueeze(0))
        scores = torch.einsum("hd,lhd->hl", q, keys) / DIM**0.5
        later = torch.arange(LENGTH, device=token.device) > position
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out(torch.einsum("hl,lhd->hd", weights, values).reshape(-1)).argmax()


def generate(call, device, steps=8):
    keys, values = (torch.zeros(LENGTH, HEADS, DIM, device=device) for _ in range(2))
    token, tokens = torch.tensor(3, device=device), []
    address = keys.data_ptr()
    for step in range(steps):
        token = call(token, torch.tensor([step], device=device), keys, values)
        tokens.append(token.item())
    assert keys.data_ptr() == address
    assert keys[: steps - 1].abs().sum() > 0
    assert keys[steps:].abs().sum() == 0
    return tokens


torch.manual_seed(0)
model = Decoder().eval()
with torch.no_grad():
    want = generate(model, "cpu")
    model = model.npu()
    for mode in ("max-autotune", "npugraph_ex"):
        torch.compiler.reset()
        config = torchair.CompilerConfig()
        config.mode = mode
        npu_backend = torchair.get_npu_backend(compiler_config=config)
        with proof.compiled(), proof.replayed(4):
            assert generate(torch.compile(model, backend=npu_backend, dynamic=False), "npu") == want
