"""What one process compiled, the next one takes from disk."""

import subprocess
import sys
import tempfile

import torch
import torch_npu

import torchair


class Model(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        config = torchair.CompilerConfig()
        self.step = torchair.inference.cache_compile(
            self.inner, config=config, dynamic=False, cache_dir=folder
        )

    def inner(self, x):
        return torch.relu(self.linear(x))

    def forward(self, x):
        return self.step(x)


def main(folder):
    torch.manual_seed(0)
    model = Model(folder).npu()
    x = torch.randn(2, 4, device="npu")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x), torch.relu(model.linear(x)))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


if __name__ == "__main__" and len(sys.argv) > 1:
    print("graphs", main(sys.argv[1]))
elif __name__ == "__main__":
    folder = tempfile.mkdtemp()
    assert main(folder) == 1
    done = subprocess.run([sys.executable, __file__, folder], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["graphs", "0"], done.stdout + done.stderr
