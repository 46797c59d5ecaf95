"""A model that calls an op which another file defines: `python3 example_use_import_new_custom_op.py`."""

import new_custom_op  # noqa: F401 - defines the op
import torch

import torchair


class Model(torch.nn.Module):
    """Calls the new op."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu_define.custom_op(x, y)


def main() -> None:
    """Compile the model and compare with eager."""
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    compiled = torch.compile(Model(), backend=torchair.get_npu_backend(), fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, y), x + y)
    assert not torchair.explain(Model(), x, y).fallbacks, "the op has a converter"
    print("equal to eager:", compiled(x, y))


if __name__ == "__main__":
    main()
