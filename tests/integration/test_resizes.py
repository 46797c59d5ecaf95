"""Resizes of images stay the ops of the IR that they are, all the way from the user's call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchair
from tests.support.compile import make_config, watching

OPS = {"nearest": "ResizeNearestNeighborV2", "bilinear": "ResizeBilinearV2"}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("how", [{"scale_factor": 2.0}, {"size": (7, 9)}], ids=["factor", "size"])
@pytest.mark.parametrize("mode", OPS)
def test_resizes_are_whole(mode: str, how: dict[str, object], dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, mode=mode, **how)  # type: ignore[arg-type]

    backend = torchair.get_npu_backend(compiler_config=make_config({}))
    torch.compiler.reset()
    ours, theirs = (torch.ones(2, 3, 5, 6).cumsum(-1).requires_grad_() for _ in range(2))
    with watching() as seen:
        made = torch.compile(fn, backend=backend, dynamic=dynamic)(ours)
        made.square().sum().backward()
    torch.testing.assert_close(made, fn(theirs))
    fn(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    forward, backward = ({op.type for op in graph.ops} for graph in seen.graphs)
    assert "TorchOp" not in forward | backward
    if not dynamic:  # sizes that are not known are gathers
        assert OPS[mode] in forward
        assert f"{OPS[mode]}Grad" in backward
        assert "IndexByTensor" not in forward | backward
