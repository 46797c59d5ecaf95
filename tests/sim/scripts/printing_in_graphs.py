"""Hidden values of a model, printed and saved at every step: eager, in both modes, and in a graph by hand."""

import contextlib
import io
import tempfile
from pathlib import Path

import proof
import torch
import torch_npu

import torchair

folder = Path(tempfile.mkdtemp())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        h = self.first(x).relu()
        torchair.ops.npu_print("hidden", h, summarize_size=2, tensor_detail=True)
        torch_npu.print_npugraph_tensor(x.sum(), tensor_name="total")
        return self.second(h)


def printed(call, x):
    """What a call prints, and its result."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        result = call(x)
        torch.npu.synchronize()
    return text.getvalue(), result


torch.manual_seed(0)
model, x = Model().eval(), torch.randn(3, 4)
with torch.no_grad():
    text, want = printed(model, x)
assert text.startswith("hidden tensor([["), text
assert "shape=[3, 8], dtype=torch.float32)\ntotal=tensor(" in text
head = text.partition("[[")[0]

model = model.npu()
for mode in ("npugraph_ex", "max-autotune"):
    config = torchair.CompilerConfig()
    config.mode = mode
    fast = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    with torch.no_grad(), proof.compiled(), proof.replayed():
        for _ in range(4):
            told, got = printed(fast, x.npu())
            assert told.startswith(head), told
            assert told.count("total=") == 1, told
            proof.close(got, want, atol=1e-4, rtol=1e-4)

given, graph = x.npu(), torch.npu.NPUGraph()
with torch.no_grad(), torch.npu.graph(graph):
    out = model.first(given)
    torch_npu.save_npugraph_tensor(out, save_path=str(folder / "out.pt"))
for scale in (1.0, 2.0):
    given.copy_(x * scale)
    graph.replay()
    torch.npu.synchronize()
    with torch.no_grad():
        proof.close(torch.load(folder / "out_device_0_0.pt").npu(), model.first(given).cpu())
