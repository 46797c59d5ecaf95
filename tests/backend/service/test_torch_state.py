"""The state of a process, in another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchair.backend.service.torch_state import TorchState
from torchair.core.torch_private.compilers.inductor import inductor_config


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = TorchState.now()
    with inductor_config.patch({}):
        yield
        before.enter()


CHANGES = {
    "threads": lambda: torch.set_num_threads(3),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "general": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "mixed": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "convolutions": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),  # type: ignore[attr-defined]
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "options": lambda: setattr(inductor_config, "epilogue_fusion", False),
}


@pytest.mark.parametrize("case", CHANGES)
def test_each_is_known_and_taken_over(case: str) -> None:
    before = TorchState.now()
    CHANGES[case]()
    changed = TorchState.now()
    assert changed != before
    before.enter()
    if case == "options":
        inductor_config.epilogue_fusion = True  # `enter` begins with the defaults
    changed.enter()
    assert TorchState.now() == changed
