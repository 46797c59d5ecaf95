"""One row for each ATen op, in a csv file."""

import csv
import os
import tempfile
from pathlib import Path

import torch
import torch_npu

import torchair

os.chdir(tempfile.mkdtemp())
config = torchair.CompilerConfig()
config.debug.fx_summary.type = "csv"
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).npu()
opt_model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
x = torch.randn(2, 4, device="npu")
with torch.no_grad():
    torch.testing.assert_close(opt_model(x), model(x))
(path,) = Path.cwd().rglob("summary_*.csv")
with path.open(newline="", encoding="utf-8") as file:
    text = "\n".join(",".join(row) for row in csv.reader(file))
assert "aten.addmm" in text, text
assert "aten.gelu" in text, text
