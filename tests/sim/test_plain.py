"""Without a compiler: one device, run by Python; what it cannot do is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process import python

BEGIN = """
import copy, io, warnings, torch, torchair, torchair.sim
from torch import nn
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    torchair.sim.install()
assert [each.category.__name__ for each in told] == ["DegradedWarning"]
assert "there is one device instead of 8" in str(told[0].message)
assert "install a C++ compiler" in str(told[0].message)
torchair.sim.install()
torch.manual_seed(0)
x = torch.randn(3, 4)
y = x.npu()
"""
EAGER = """
assert y.device == torch.device("npu:0") and torch.npu.device_count() == 1
y[1:, ::2].add_(5)
x[1:, ::2].add_(5)
assert torch.equal(y.cpu(), x) and y[1:]._base is y and y.t().stride() == (1, 4)
assert torch.equal(torch.view_as_real(torch.fft.rfft(y)).cpu(), torch.view_as_real(torch.fft.rfft(x)))
assert torch.equal(torch.fft.rfft(y).conj().resolve_conj().cpu(), torch.fft.rfft(x).conj())
grown = torch.empty(0, device="npu")
torch.add(y, 1, out=grown)
assert torch.equal(grown.cpu(), x + 1)
assert torch.ones(1, 0, 3).npu().logical_not().shape == (1, 0, 3)
assert (y % 2).sum().item() == (x % 2).sum().item()

model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2), nn.LayerNorm(4))
there = copy.deepcopy(model).npu()
for each, given in ((model, x), (there, y)):
    step = torch.optim.SGD(each.parameters(), 0.01, momentum=0.9)
    for _ in range(2):
        each(given[None, None]).square().sum().backward()
        step.step()
for here, other in zip(model.parameters(), there.parameters()):
    torch.testing.assert_close(here, other.cpu(), rtol=1e-3, atol=1e-4)

torch.manual_seed(0)
drawn = torch.randn(3, device="npu")
torch.manual_seed(0)
assert torch.equal(drawn.cpu(), torch.randn(3))
file = io.BytesIO()
torch.save({"y": y, "view": y[1:]}, file)
file.seek(0)
found = torch.load(file)
assert found["view"].device.type == "npu" and torch.equal(found["view"].cpu(), x[1:])
found["y"].zero_()
assert not found["view"].any()
import torch_npu
assert torch_npu.npu_rms_norm(y, y[0])[0].device.type == "npu"
"""
COMPILED = """
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
there = copy.deepcopy(model).npu()
for mode in ("max-autotune", "npugraph_ex"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    run = torch.compile(there, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        for rows in (3, 5):
            given = torch.randn(rows, 4)
            got = run(given.npu())
            assert got.device.type == "npu"
            torch.testing.assert_close(got.cpu(), model(given))
    if mode == "max-autotune":  # a cause is told once in a process
        assert any("not recorded" in str(each.message) for each in told), told
"""
MISSING = """
import torchair.core.errors as errors
def refused(call, kind, text):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
refused(torch.npu.NPUGraph, errors.NotPossible, "needs the C++ part")
refused(torch.npu.memory_allocated, errors.NotPossible, "needs the C++ part")
refused(torch.npu.ExternalEvent, errors.NotPossible, "needs the C++ part")
refused(lambda: torchair.sim.races_checked().__enter__(), errors.NotPossible, "needs the C++ part")
refused(lambda: torch.ones(2, device="npu:1"), RuntimeError, "invalid device ordinal")
refused(lambda: torch.npu.set_device(1), RuntimeError, "invalid device ordinal")
refused(lambda: y + x, RuntimeError, "two devices")
refused(lambda: y.to_sparse(), errors.NotPossible, "C++ part")
refused(lambda: y.untyped_storage().resize_(400), NotImplementedError, "")
refused(lambda: x.pin_memory(), NotImplementedError, "")
refused(lambda: torch.Generator("npu"), NotImplementedError, "")
with torch.npu.stream(torch.npu.Stream()):
    assert torch.equal((y + 1).cpu(), x + 1)
torch.npu.synchronize()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with torch.autocast("npu", dtype=torch.float16):
        assert (y @ y.t()).dtype == torch.float32
assert "Disabling autocast" in str(told[0].message)
"""


@pytest.mark.parametrize("code", [EAGER, COMPILED, MISSING], ids=["eager", "compiled", "missing"])
def test_without_a_compiler(code: str, tmp_path: Path) -> None:
    environment = {
        "PATH": "",
        "CXX": str(tmp_path / "no-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHAIR_PROGRAMS": str(tmp_path / "programs"),
    }
    done = python(["-c", BEGIN + code], **environment)
    assert done.returncode == 0, done.stderr[-3000:]
