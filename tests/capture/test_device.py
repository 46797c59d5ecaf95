"""Rows of the device table: the quick copy of inputs."""

from __future__ import annotations

import ctypes

import pytest
import torch

from torchair.capture.device import DEVICES, Copier, _copier

CPU = torch.device("cpu")


@pytest.fixture
def copy() -> Copier:
    """As on a GPU, with the host's call that moves bytes."""

    def move(target: int, source: int, size: int, kind: int, stream: int) -> int:
        assert (kind, stream) == (3, 40)
        ctypes.memmove(target, source, size)
        return 0

    return _copier(move, lambda: 0, lambda index: 40, CPU)


def test_bytes_are_moved(copy: Copier) -> None:
    source, target = torch.randn(3, 4), torch.zeros(3, 4)
    assert copy(target, source)
    torch.testing.assert_close(target, source, rtol=0, atol=0)


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(4, 3).t(),
        torch.randn(3, 4, dtype=torch.float64),
        torch.randn(1, 4),
        torch.randn(3, 4, device="meta"),
        torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    ],
    ids=["strided", "other dtype", "other shape", "other device", "lazily negated"],
)
def test_what_takes_more_than_bytes_is_left_alone(copy: Copier, source: torch.Tensor) -> None:
    target = torch.zeros(3, 4)
    assert not copy(target, source)
    assert not target.any()


def test_conjugation_is_not_lost(copy: Copier) -> None:
    target = torch.zeros(3, dtype=torch.complex64)
    assert not copy(target, torch.randn(3, dtype=torch.complex64).conj())


def test_an_error_of_the_runtime_is_no_copy() -> None:
    copy = _copier(lambda *args: 700, lambda: 0, lambda index: 0, CPU)
    assert not copy(torch.zeros(2), torch.ones(2))


def test_another_current_device_has_another_default_stream() -> None:
    copy = _copier(lambda *args: 0, lambda: 1, lambda index: 0, CPU)
    assert not copy(torch.zeros(2), torch.ones(2))


def test_only_cuda_has_the_call() -> None:
    assert DEVICES["cpu"].copier(CPU) is None
    assert DEVICES["npu"].copier(CPU) is None
