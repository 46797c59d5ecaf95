"""A hundred gears on a GPU take hardly more memory than the largest alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchair
from torchair.capture.base import output_buffers
from torchair.capture.strategies.recorder import Recorder
from torchair.inference import set_dim_gears

pytestmark = pytest.mark.cuda

SIZES = [64 * step for step in range(1, 101)]
WIDTH = 1024
MOST = 1.25


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """A first recording gives back what libraries kept for tests before: that is none of the measurement."""
    with torch.no_grad():
        peak([SIZES[0]])


def peak(order: list[int]) -> int:
    """Bytes at most while these gears are called, each often enough to have its own program recorded."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    run = torch.compile(
        lambda x: (x.sin() + 1) * 2,
        backend=torchair.get_npu_backend(compiler_config=config),
        dynamic=True,
        fullgraph=True,
    )
    for turn in range(4):
        for size in order:
            x = torch.full((size, WIDTH), float(turn), device="cuda")
            if size == order[0] and not turn:
                set_dim_gears(x, {0: SIZES})
            y = run(x)
            del x
            assert y[0, 0].item() == pytest.approx((torch.tensor(float(turn)).sin().item() + 1) * 2)
            assert y.shape == (size, WIDTH)
            del y
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


ORDERS: dict[str, Any] = {"ascending": SIZES, "descending": SIZES[::-1]}


@pytest.mark.parametrize("order", ORDERS)
def test_a_hundred_gears_take_the_memory_of_the_largest(order: str) -> None:
    alone = peak([SIZES[-1]])
    all_of_them = peak(ORDERS[order])
    print(f"{order}: {all_of_them / 2**20:.1f} MiB, the largest alone {alone / 2**20:.1f} MiB")
    assert all_of_them <= MOST * alone


def test_the_measurement_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with memory of its own for each recording, as it was, there is far more."""
    alone = peak([SIZES[-1]])

    def own(
        self: output_buffers.OutputBufferPool, sizes: Any, room: Any, taken: Any
    ) -> output_buffers.OutputBuffer:
        return output_buffers.OutputBuffer(sizes, self._device)

    monkeypatch.setattr(output_buffers.OutputBufferPool, "find", own)
    monkeypatch.setattr(
        Recorder, "borrows", property(lambda self: True, lambda self, value: None), raising=False
    )
    unshared = peak(SIZES)
    print(f"unshared: {unshared / 2**20:.1f} MiB, the largest alone {alone / 2**20:.1f} MiB")
    assert unshared > 4 * alone
