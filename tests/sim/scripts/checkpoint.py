"""Save and load a checkpoint: model, optimizer and random state, and to the CPU."""

import copy
import tempfile

import proof
import torch
import torch_npu

path = f"{tempfile.mkdtemp()}/checkpoint.pt"
torch.manual_seed(0)
model = torch.nn.Linear(4, 4).npu()
steps = torch.optim.Adam(model.parameters())


def step(model, steps):
    steps.zero_grad()
    (model(torch.randn(2, 4, device="npu")) * torch.rand(4, device="npu")).sum().backward()
    steps.step()


step(model, steps)
state = {"model": model.state_dict(), "steps": steps.state_dict(), "random": torch.npu.get_rng_state()}
torch.save(state, path)
step(model, steps)
want = copy.deepcopy(model.state_dict())
found = torch.load(path)
assert found["model"]["weight"].device == torch.device("npu:0")
again = torch.nn.Linear(4, 4).npu()
again.load_state_dict(found["model"])
others = torch.optim.Adam(again.parameters())
others.load_state_dict(found["steps"])
torch.npu.set_rng_state(found["random"].cpu())
step(again, others)
for name, value in again.state_dict().items():
    assert torch.equal(value, want[name]), name
assert torch.load(path, map_location="cpu")["model"]["weight"].device.type == "cpu"
assert torch.load(path, map_location="npu:3")["model"]["weight"].device.index == 3
found = torch.load(path, map_location=lambda storage, location: storage.npu(1))
assert found["model"]["weight"].device == torch.device("npu:1")
assert torch.load(path, map_location={"npu:0": "npu:1"})["model"]["weight"].device.index == 1
