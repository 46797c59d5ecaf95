"""A compiled model is saved, and called in another process that has no code of the model."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch_npu

import torchair

LOAD = """
import sys, torch, torch_npu, torchair
folder = sys.argv[1]
model, x = torchair.CompiledModel.load_graph(folder + "/saved"), torch.load(folder + "/x.pt")
assert x.device.type == "npu"
torch.testing.assert_close(model(x), torch.load(folder + "/want.pt"))
print("loaded")
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).relu()


folder = Path(tempfile.mkdtemp())
net, x = Net().npu().eval(), torch.randn(2, 4, device="npu")
torchair.CompiledModel.save_graph(net, (x,), save_path=folder / "saved")
assert (folder / "saved/compiled_graph.air").is_file()
with torch.no_grad():
    torch.save(net(x), folder / "want.pt")
torch.save(x, folder / "x.pt")
done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=False)
assert "loaded" in done.stdout, done.stderr
