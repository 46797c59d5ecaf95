"""Models whose calls are kept. They are in a module, as models of other processes are."""

from __future__ import annotations

import torch

from tests.inference import helper
from tests.inference.helper import decorated, shifted

FACTOR = 2
TABLE = {"bias": 1}


def shape_up(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def scaled_by(amount: int):
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * amount

    return scale


class Net(torch.nn.Module):
    """Reads all that guards are made for."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(0.5)
        self.way = "relu"
        self.times = 1

    def step(self, x: torch.Tensor, flag: bool = True, *, extra: torch.Tensor | None = None) -> torch.Tensor:
        x = self.drop(self.first(x))
        x = torch.relu(x) if self.way == "relu" else torch.tanh(x)
        if flag:
            x = shape_up(x)
        if extra is not None:
            x = x + extra
        return x * FACTOR * self.times + TABLE["bias"]

    def made(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + torch.ones(8)

    def view(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x[1:], y, self.first(x)

    def elsewhere(self, x: torch.Tensor) -> torch.Tensor:
        return shifted(self.first(x)) * helper.Settings.scale + helper.OFFSET

    def assuming(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) if helper.is_available("it") else x

    @decorated
    def wrapped(self, x: torch.Tensor, less: int = 1, more: int = 2) -> torch.Tensor:
        return self.first(x) * more - less

    def size(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).abs()

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


def closed_over(amount: int) -> type[Net]:
    """A class whose method has a closure."""

    class Closed(Net):
        def step(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.first(x) * amount

        def grow(self, by: int) -> None:
            nonlocal amount
            amount += by

    return Closed
