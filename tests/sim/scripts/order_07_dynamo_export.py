"""A model for the device, exported to a file that others load."""

import os
import tempfile
from pathlib import Path

import torch
import torch_npu

import torchair

os.chdir(tempfile.mkdtemp())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
x = torch.randn(3, 4)
with torch.no_grad():
    want = model(x)
torchair.dynamo_export(x.npu(), model=model.npu(), export_path="out", export_name="net", dynamic=True)
assert Path("out/net.air").is_file()
assert Path("out/dynamo.pbtxt").is_file()
for size in (3, 5):
    x = torch.randn(size, 4)
    with torch.no_grad():
        want = model.cpu()(x)
    torch.testing.assert_close(torchair.load_air("out/net.air")(x), want)
