"""What torch and its users see of a device."""

from __future__ import annotations

import io
import os
import threading

import pytest
import torch
from torch import nn

import torchair
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode

NPU = torch.device("npu:0")
HAS_GPU = os.environ.get("TORCHAIR_SIM_BACKING") == "cuda"


def test_tensors_and_modules_go_there_and_back() -> None:
    x = torch.randn(3, 4)
    assert x.npu().device == NPU
    assert x.to("npu").is_npu
    assert not x.is_npu
    assert torch.equal(x.npu().cpu(), x)
    assert next(nn.Linear(2, 2).npu().parameters()).device == NPU
    assert x.npu(3).device == torch.device("npu:3")
    assert x.npu(3).npu(1).device.index == 1
    assert x.npu().data_ptr() != x.data_ptr()


def test_parameters_move_by_their_data() -> None:
    """They stay what they are, for an optimiser that knows them already."""
    layer = nn.Linear(2, 3)
    weight, optimizer = layer.weight, torch.optim.SGD(layer.parameters(), lr=1.0)
    weight.data = weight.data.npu()
    assert weight.device == NPU
    layer.npu()
    assert layer.weight is weight
    layer(torch.ones(1, 2, device="npu")).sum().backward()
    want = layer.bias.detach().cpu() - 1
    optimizer.step()
    assert torch.equal(layer.bias.cpu(), want)
    layer.zero_grad()
    layer.cpu()
    assert layer.weight is weight
    assert weight.device.type == "cpu"
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        weight.data = torch.ones(2, 3).to_sparse()


def test_torch_profiles_the_device() -> None:
    x = torch.ones(4, device="npu")
    with torch.autograd.profiler.profile(use_device="npu") as profile:
        _ = x + 1
    row = next(row for row in profile.key_averages() if row.key == "aten::add")
    assert row.count >= 1
    assert 0 < row.device_time_total < 1e6


def test_memory_is_exchanged() -> None:
    x = torch.arange(3.0, device="npu:1")
    y = torch.from_dlpack(x)
    assert y.device == x.device
    assert y.data_ptr() == x.data_ptr()
    assert x.cpu().__dlpack_device__()[0] == torch.utils.dlpack.DLDeviceType.kDLCPU


def test_views_share_memory() -> None:
    x = torch.zeros(4, 6, device="npu")
    x.t()[2].fill_(5)
    x[1:3, ::2] += 1
    x.view(-1)[0] = 9
    want = torch.zeros(4, 6)
    want[:, 2] = 5
    want[1:3, ::2] += 1
    want[0, 0] = 9
    assert torch.equal(x.cpu(), want)
    assert x.t().untyped_storage().data_ptr() == x.data_ptr()
    assert x.unfold(0, 2, 1).untyped_storage().data_ptr() == x.data_ptr()


def test_conjugates_are_views_and_are_copied() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    there = x.npu().conj()
    assert there.is_conj()
    assert there.cpu().equal(x.conj().resolve_conj())
    assert there.imag.is_neg()
    assert there.imag.cpu().equal(-x.imag)
    assert torch.zeros_like(there).conj().copy_(x.npu()).cpu().equal(x)
    lu, pivots = torch.linalg.lu_factor(x[:, :3].npu())
    got = torch.linalg.lu_solve(lu, pivots, x[:, :3].npu(), left=False)
    assert got.is_conj(), "a kernel says so of what it has written"
    torch.testing.assert_close(got.cpu() @ x[:, :3], x[:, :3])


def test_zeros_without_memory() -> None:
    x = torch.randn(4, device="npu", requires_grad=True)
    (grad,) = torch.autograd.grad(x.sgn().sum(), x)
    assert grad.tolist() == [0.0] * 4
    zeros = torch._efficientzerotensor((2, 3), device="npu:1")
    assert zeros.t()._is_zerotensor()
    assert (zeros.t() + 1).tolist() == [[1.0, 1.0]] * 3


def test_out_arguments_are_resized_and_written() -> None:
    x, out = torch.randn(3, 4, device="npu"), torch.empty(0, device="npu")
    address = torch.empty(3, 4, device="npu")
    torch.add(x, x, out=out)
    torch.mul(x, 2, out=address[:])
    assert torch.equal(out, x + x)
    assert torch.equal(address, x * 2)


def test_gradients_on_two_devices() -> None:
    for device in ("npu:0", "npu:5"):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
        )
        x = torch.randn(2, 3, 8, 8)
        copy = nn.Sequential(*model).to(device)
        want = torch.autograd.grad(model.cpu()(x).sum(), list(model.parameters()))
        copy = copy.to(device)
        got = torch.autograd.grad(copy(x.to(device)).sum(), list(copy.parameters()))
        assert all(g.device == torch.device(device) for g in got)
        torch.testing.assert_close([g.cpu() for g in got], list(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SmoothL1Loss()])
def test_losses_do_not_warn(loss: nn.Module) -> None:
    """Neither eagerly, where it would be an error here, nor in each replay, where C++ would write it."""
    x, y = torch.randn(4, 5), torch.zeros(4, 5)
    torch.testing.assert_close(loss(x.npu(), y.npu()).cpu(), loss(x, y))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = kind(5, 3, num_layers=2, bidirectional=True)
    x = torch.randn(4, 2, 5)
    want = layer(x)[0]
    grads = torch.autograd.grad(want.square().sum(), list(layer.parameters()))
    layer.npu()
    got = layer(x.npu())[0]
    there = torch.autograd.grad(got.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close([g.cpu() for g in there], list(grads))


def test_devices_are_not_mixed() -> None:
    x = torch.ones(3, device="npu")
    for other in (torch.ones(3), torch.ones(3, device="npu:1")):
        for call in (torch.add, torch.dot, torch.maximum):
            with pytest.raises(RuntimeError, match="same device"):
                call(x, other)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 2, device="npu") @ torch.ones(2, 2)
    assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3, "a number of the host may go with any device"
    assert x[torch.tensor([0, 2])].tolist() == [1.0, 1.0], "indices of the host, too"


def test_no_such_device() -> None:
    with pytest.raises(RuntimeError, match="ordinal"):
        torch.empty(1, device="npu:8")
    with pytest.raises(RuntimeError, match="ordinal"):
        torch.npu.set_device(8)
    with torch.npu.device(2):
        assert torch.empty(1, device="npu").device.index == 2
    assert torch.npu.current_device() == 0


def test_seeds_and_states() -> None:
    torch.manual_seed(7)
    first = torch.rand(4, device="npu")
    state = torch.npu.get_rng_state()
    second = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="npu"), second)
    torch.npu.manual_seed_all(7)
    assert torch.equal(torch.rand(4, device="npu"), first)
    assert not torch.equal(first, second)
    generator = torch.Generator("npu").manual_seed(3)
    a = torch.randn(2, generator=generator, device="npu")
    assert generator.get_offset() == 4
    generator.set_offset(0)
    assert torch.equal(torch.randn(2, generator=generator, device="npu"), a)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, generator=torch.Generator(), device="npu")
    torch.manual_seed(1)
    a = nn.functional.dropout(torch.ones(64, device="npu"))
    torch.manual_seed(1)
    assert torch.equal(nn.functional.dropout(torch.ones(64, device="npu")), a)


def test_pinned_memory() -> None:
    x = torch.randn(3).pin_memory()
    assert x.is_pinned()
    assert x[1:].is_pinned()
    assert not torch.randn(3).is_pinned()
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert torch.equal(x.npu(non_blocking=True).cpu(), x)


def test_saved_and_loaded() -> None:
    file = io.BytesIO()
    x = torch.randn(3, 4, device="npu:2")
    torch.save({"x": x, "view": x[1:]}, file)
    for where, device in ((None, "npu:2"), ("cpu", "cpu"), ("npu:1", "npu:1")):
        file.seek(0)
        found = torch.load(file, map_location=where)
        assert found["x"].device == torch.device(device)
        assert torch.equal(found["view"].cpu(), x[1:].cpu())
        assert found["view"].untyped_storage().data_ptr() == found["x"].data_ptr()


def test_storages() -> None:
    storage = torch.arange(4.0, device="npu").untyped_storage()
    assert storage.device == NPU
    assert storage.nbytes() == 16
    storage.resize_(32)
    assert torch.empty(0, device="npu").set_(storage)[:4].tolist() == [0, 1, 2, 3]
    assert storage.cpu().nbytes() == 32
    assert torch.UntypedStorage(8, device="npu").device == NPU
    assert storage.clone().data_ptr() != storage.data_ptr()


def test_mixed_precision() -> None:
    x = torch.randn(4, 4, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).softmax(-1).dtype == torch.float32
    with torch.npu.amp.autocast():
        assert (x @ x).dtype == torch.float16
    model = nn.Linear(4, 4).npu()
    scaler, steps = torch.npu.amp.GradScaler(), torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.clone()
    scaler.scale(model(x).sum()).backward()
    scaler.step(steps)
    scaler.update()
    assert not torch.equal(before, model.weight)


def test_memory_is_counted() -> None:
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats(6)
    assert torch.npu.memory_allocated(6) == 0
    x = torch.empty(1000, device="npu:6")
    assert torch.npu.memory_allocated(6) == 4096
    y = x @ x.view(1000, 1)
    assert torch.npu.memory_allocated(6) == 4096 + 512
    assert torch.npu.memory_stats(6)["requested_bytes.all.current"] == 4004
    del x, y
    assert torch.npu.memory_allocated(6) == 0
    assert torch.npu.max_memory_allocated(6) == 4608
    assert torch.npu.memory_reserved(6) >= 4608
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved(6) == 0


def test_memory_ends() -> None:
    torch.npu.set_per_process_memory_fraction(0.001, 7)
    x = torch.empty(1 << 20, device="npu:7")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1\.00 GiB"):
        torch.empty(1 << 30, dtype=torch.uint8, device="npu:7")
    assert torch.npu.memory_allocated(7) == x.nbytes
    torch.npu.set_per_process_memory_fraction(1.0, 7)


def test_streams_and_events() -> None:
    side = torch.npu.Stream()
    first, second = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    first.record()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side != torch.npu.default_stream()
        second.record()
    side.wait_event(first)
    torch.npu.current_stream().wait_stream(side)
    torch.npu.synchronize()
    assert first.query()
    assert first.elapsed_time(second) >= 0
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        first.elapsed_time(side.record_event())
    same = torch.npu.Stream(
        stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type
    )
    assert same == side
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_threads_have_their_own_device_and_stream() -> None:
    seen: list[int] = []

    def work() -> None:
        seen.append(torch.npu.current_device())
        torch.npu.set_device(4)
        seen.append(torch.ones(1, device="npu").device.index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 4]
    assert torch.npu.current_device() == 0


def test_an_eager_op_is_cheap() -> None:
    """Not how long it takes, but what it does: no copy, one small allocation."""
    x = torch.ones(1 << 16, device="npu")
    before = torch.npu.memory_stats()["allocation.all.allocated"]
    x.add_(1)
    y = x.t()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == before
    assert y.data_ptr() == x.data_ptr()


@pytest.mark.skipif(
    HAS_GPU,
    reason="cuDNN lays gradients out as it likes, and torch foretells its own devices alone; compiled "
    "programs copy what lies otherwise",
)
def test_convolutions_lie_as_torch_foretells() -> None:
    """Compiled programs view their results."""
    x = torch.randn(2, 4, 5, 5, device="npu").to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(6, 4, 3, 3, device="npu").to(memory_format=torch.channels_last).requires_grad_()

    def strides(x: torch.Tensor, weight: torch.Tensor) -> list[tuple[int, ...]]:
        made = nn.functional.conv2d(x, weight)
        grads = torch.ops.aten.convolution_backward(
            made, x, weight, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
        )
        return [each.stride() for each in (made, *grads)]

    with FakeTensorMode() as mode:
        foretold = strides(mode.from_tensor(x), mode.from_tensor(weight))
    assert strides(x, weight) == foretold


# Of a GPU nobody foretells it: told, and put right in every call.
@pytest.mark.filterwarnings(f"{'ignore' if HAS_GPU else 'error'}:output . has wrong strides")
@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_convolutions_that_lie_otherwise_are_right(mode: str) -> None:
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "eager"
    backend = torchair.get_npu_backend(compiler_config=config)
    grads = list[list[torch.Tensor]]()
    for is_compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3)).npu()
        net = net.to(memory_format=torch.channels_last)
        x = torch.randn(2, 4, 9, 9).npu().to(memory_format=torch.channels_last).requires_grad_()
        (torch.compile(net, backend=backend) if is_compiled else net)(x).square().mean().backward()
        grads.append([x.grad, *(parameter.grad for parameter in net.parameters())])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_whole_numbers_are_counted() -> None:
    """As other devices do, and the CPU does not."""
    x = torch.tensor([0, 1, 1, 3, 3, 3], dtype=torch.int32, device="npu")
    made = torch.histc(x, bins=4, min=0, max=3)
    assert (made.dtype, made.tolist()) == (torch.int32, [1, 2, 0, 3])
