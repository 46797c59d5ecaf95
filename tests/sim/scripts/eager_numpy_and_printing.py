"""Small things of a tensor: printing, numpy, copies, comparison, indexing by masks."""

import copy
import pickle

import numpy as np
import proof
import torch
import torch_npu

x = torch.arange(6.0).view(2, 3)
y = x.npu()
assert "device='npu:0'" in repr(y)
assert np.array_equal(y.cpu().numpy(), x.numpy())
try:
    y.numpy()
except TypeError:
    pass
else:
    raise AssertionError("numpy reads no memory of a device")
proof.close(y[y > 2], x[x > 2])
proof.close(copy.deepcopy(y), x)
proof.close(pickle.loads(pickle.dumps(y)), x)
assert torch.equal(y, x.npu())
assert y.type() == "torch.npu.FloatTensor"
proof.close(torch.stack([y, y]).unique(), x.unique())
assert y.nonzero().shape == (5, 2)
assert torch.npu.is_available()
assert torch.get_device_module("npu") is torch.npu
assert torch.accelerator.current_accelerator().type == "npu"
