"""`register_replacement` in one thread, compiles in another."""

from __future__ import annotations

import threading

import pytest
import torch

import torchair
from tests.passes.pattern_rules import separate_sets

T = torch.ones(2, 4)

own_sets = pytest.fixture(autouse=True)(separate_sets)


def test_a_compile_waits_for_a_registration() -> None:
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="eager")
    made: list[torch.Tensor] = []
    errors: list[Exception] = []
    waited: list[bool] = []

    def call() -> None:
        try:
            made.append(compiled(T))
        except RuntimeError as error:
            errors.append(error)

    other = threading.Thread(target=call)

    def find(x: torch.Tensor) -> torch.Tensor:
        if not waited:
            other.start()
            other.join(1)
            waited.append(other.is_alive())
        return torch.exp(x + 1)

    torchair.register_replacement(find, lambda x: torch.exp(1 + x), [T])
    other.join()
    assert waited == [True]
    assert errors == []
    torch.testing.assert_close(made, [T + 1])
