"""What the first call of a process loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST_CALL = """
import sys, torch, torchair
config = torchair.CompilerConfig()
config.mode = sys.argv[1]
config.engine_config.compile_budget_s = 0
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).eval()
run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
x = torch.randn(2, 4)
with torch.no_grad():
    torch.testing.assert_close(run(x), model(x))
slow = ("lowering", "pattern_matcher", "decomposition", "compile_fx", "fx_passes.post_grad")
print(sorted(name for name in slow if f"torch._inductor.{name}" in sys.modules))
"""


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_it_loads_none_of_inductors_compilers(mode: str) -> None:
    """They take a second, and the eager program needs none of them."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, mode], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
