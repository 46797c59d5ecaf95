"""The graph as text, for TensorBoard and as Python that runs."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch_npu

import torchair

os.chdir(tempfile.mkdtemp())
x = torch.randn(2, 4, device="npu")
for kind in ("txt", "pbtxt", "py"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = kind
    opt = torch.compile(lambda x: torch.relu(x) + 1, backend=torchair.get_npu_backend(compiler_config=config))
    torch.testing.assert_close(opt(x), torch.relu(x) + 1)
    files = list(Path.cwd().glob(f"dynamo_*.{kind}"))
    assert files, kind
    assert any("Relu" in file.read_text() for file in files), kind
python = sorted(Path.cwd().glob("dynamo_*.py"))[0]
subprocess.run([sys.executable, str(python)], check=True)
