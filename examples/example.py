"""A model, compiled by torchair: `python3 examples/example.py`."""

import torch

import torchair


class Model(torch.nn.Module):
    """Something to compile."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x + y) * 2


def main() -> None:
    """Compile the model by a configured backend and by name, and compare with eager."""
    model = Model()
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    expected = model(x, y)

    config = torchair.CompilerConfig()
    backend = torchair.get_npu_backend(compiler_config=config)
    for chosen in (backend, "npu", "npugraph_ex"):
        result = torch.compile(model, backend=chosen)(x, y)
        torch.testing.assert_close(result, expected)
    print("equal to eager:", expected)


if __name__ == "__main__":
    main()
