"""Capture mode by name, with options; an unknown one is an error that says so."""

import proof
import torch
import torch_npu


def f(x, w):
    return torch.softmax(x @ w, -1)


x, w = torch.randn(3, 4), torch.randn(4, 4)
options = {"clone_output": True, "capture_limit": 4}
opt = torch.compile(f, backend="npugraph_ex", dynamic=False, fullgraph=True, options=options)
with proof.compiled(), proof.replayed(2):
    results = [opt(x.npu(), w.npu()) for _ in range(4)]
assert len({result.data_ptr() for result in results}) == 4, "each is a copy"
for result in results:
    proof.close(result, f(x, w))
torch.compiler.reset()
try:
    torch.compile(f, backend="npugraph_ex", options={"no_such_option": 1})(x.npu(), w.npu())
except Exception as error:
    assert "no_such_option" in str(error)
else:
    raise AssertionError("there is no such option")
