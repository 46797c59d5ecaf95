"""Kernels are tried out once: an entry of `cache_compile` has the ones that were the fastest, and which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.process import fresh

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch, torchair
from torch._inductor.runtime import triton_heuristics as kernels

made, tried = [], []

def counted(owner, name, seen):
    original = getattr(owner, name)
    def count(*args, **kwargs):
        seen.append(1)
        return original(*args, **kwargs)
    setattr(owner, name, count)

if torch.cuda.is_available():
    from triton.backends.nvidia.compiler import CUDABackend
    counted(CUDABackend, "make_ptx", made)
counted(kernels.CachingAutotuner, "bench", tried)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048)

    def forward(self, x):
        return torch.softmax(self.second(torch.tanh(self.first(x))).float(), -1)


torch.manual_seed(0)
net = Net().to("cuda", torch.bfloat16).eval()
x = torch.randn(1, 2048, device="cuda", dtype=torch.bfloat16)
config = torchair.CompilerConfig()
config.mode = "max-autotune"
config.engine_config.codegen = sys.argv[2]
with torch.no_grad():
    want = net(x)
    call = torchair.inference.cache_compile(net.forward, config=config, cache_dir=sys.argv[1])
    results = [call(x)]
    torch.cuda.synchronize()
    first = [len(made), len(tried)]
    waited = torchair.wait_until_optimised(300)
    results.append(call(x))
    for got in results:
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-3)
print(json.dumps({"made": first[0], "tried": first[1], "later": len(made), "waited": waited}))
"""


@pytest.mark.cuda
@pytest.mark.parametrize("codegen", ["auto", "inductor"])
def test_a_warm_process_builds_and_tries_no_kernel(tmp_path: Path, codegen: str) -> None:
    """Not even where nothing is left of what Inductor and Triton keep."""
    said = []
    for number in range(3):
        own = tmp_path / str(number)
        folders = {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "TRITON_CACHE_DIR": str(own / "triton")}
        done = fresh(
            ["-c", PROGRAM, str(tmp_path / "kept"), codegen],
            XDG_CACHE_HOME=str(own),
            TORCHAIR_CACHE_HOME=str(own),
            **folders,
        )
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout.splitlines()[-1]))
    cold, *warm = said
    assert cold["waited"]
    if codegen == "inductor":
        assert cold["made"] > 0
        assert cold["tried"] > 0
    assert [(each["made"], each["tried"], each["later"]) for each in warm] == [(0, 0, 0)] * 2
