"""Tensors over memory that somebody else owns."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
import torch

from torchair.llm_datadist import DTYPES, create_npu_tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_seen_and_written_in_place(dtype: torch.dtype) -> None:
    owner = (torch.arange(12) % 2).reshape(3, 4).to(dtype)
    (seen,) = create_npu_tensors([3, 4], dtype, [owner.data_ptr()])
    assert (seen.dtype, seen.shape, seen.stride()) == (dtype, owner.shape, (4, 1))
    assert torch.equal(seen, owner)
    seen[1, 2] = 1
    assert owner[1, 2] == 1
    owner.zero_()
    assert not seen.any()


def test_the_memory_is_never_freed_by_the_tensors() -> None:
    block = (ctypes.c_float * 1024)(*range(1024))
    address = ctypes.addressof(block)
    for _ in range(3):
        tensors = create_npu_tensors((32, 32), torch.float32, [address, address])
        assert tensors[0].data_ptr() == address
        del tensors
        gc.collect()
    assert block[1023] == 1023


def test_blocks_of_one_array() -> None:
    """As caches are laid out: one allocation, an address per block."""
    array = np.zeros((4, 16), dtype=np.int32)
    first = array.ctypes.data
    views = create_npu_tensors([16], torch.int32, [first + 64 * block for block in range(4)])
    for number, view in enumerate(views):
        view.fill_(number)
    assert (array == np.arange(4, dtype=np.int32)[:, None]).all()


def test_they_are_tensors_for_a_compiled_graph() -> None:
    owner = torch.zeros(4, 8)
    (cache,) = create_npu_tensors([4, 8], torch.float32, [owner.data_ptr()])

    def step(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        cache[1].copy_(row)
        return cache.sum()

    with torch.no_grad():
        total = torch.compile(step, backend="npu", options={"codegen": "eager"})(cache, torch.ones(8))
    assert total == 8
    assert owner[1].sum() == 8


def test_nothing_lies_anywhere() -> None:
    (empty,) = create_npu_tensors([0, 4], torch.float32, [0])
    assert empty.shape == (0, 4)
    assert create_npu_tensors([2], torch.float32, []) == []


@pytest.mark.parametrize(("shape", "dtype", "addresses", "error"), [
    ("4", torch.float32, [1], TypeError), ([4.0], torch.float32, [1], TypeError),
    ([True], torch.float32, [1], TypeError), ([4], torch.float32, 1, TypeError),
    ([4], torch.float32, ["1"], TypeError), ([4], "float32", [1], TypeError),
    ([4], np.float32, [1], TypeError), ([4], torch.complex32, [1], ValueError),
    ([4], torch.float8_e5m2, [1], ValueError), ([4], torch.float32, [0], RuntimeError),
    ([-4], torch.float32, [64], RuntimeError), ([4], torch.float32, [-64], RuntimeError),
])  # fmt: skip
def test_what_is_refused(shape: object, dtype: object, addresses: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        create_npu_tensors(shape, dtype, addresses)  # type: ignore[arg-type]


@pytest.mark.cuda
def test_an_address_of_a_device_gives_a_tensor_there() -> None:
    on_device, pinned, plain = torch.arange(8.0, device="cuda"), torch.ones(8).pin_memory(), torch.zeros(8)
    addresses = [tensor.data_ptr() for tensor in (on_device, pinned, plain)]
    seen = create_npu_tensors([8], torch.float32, addresses)
    assert [tensor.device.type for tensor in seen] == ["cuda", "cpu", "cpu"]
    seen[0].mul_(2)
    assert on_device.tolist() == [2.0 * number for number in range(8)]
    (half,) = create_npu_tensors([4], torch.bfloat16, [on_device.data_ptr()])
    assert half.device == on_device.device
