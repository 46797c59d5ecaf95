"""Prompt and decode are two methods that are compiled once and kept; sizes are rounded up to gears."""

import tempfile
from pathlib import Path

import proof
import torch
import torch_npu

import torchair


class Model(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        config = torchair.CompilerConfig()
        self.cached_prompt = torchair.inference.cache_compile(self.prompt, config=config, cache_dir=folder)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config, cache_dir=folder)

    def forward(self, x):
        return self.cached_prompt(x) if x.shape[0] > 1 else self.cached_decode(x)

    def prompt(self, x):
        return self.linear(x) + 1

    def decode(self, x):
        return self.linear(x) - 1


folder = tempfile.mkdtemp()
torch.manual_seed(0)
model = Model(folder).npu()
plain = torch.nn.Linear(4, 4)
plain.load_state_dict(model.linear.state_dict())
with torch.no_grad(), proof.replayed(2):
    for size in (3, 3, 1, 1, 3, 1):
        x = torch.randn(size, 4)
        proof.close(model(x.npu()), plain(x) + (1 if size > 1 else -1))
torchair.wait_until_optimised()
assert len({path.parent for path in Path(folder).rglob("*") if path.is_file()}) >= 2, "both were kept"
