"""`torch.npu` has what users of such a module expect, and refuses what makes no sense."""

from __future__ import annotations

import importlib
import inspect
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_npu

from torchair.core.log import logger
from torchair.sim import npu
from torchair.sim.npu import hints
from torchair.sim.plugin import profiler

# Names of torch.cuda that torch.npu has not, and why.
OF_CUDA = {
    "CUDAGraph": "NPUGraph",
    "CudaError": "of the runtime",
    "DeferredCudaCallError": "nothing is deferred",
    "GreenContext": "of the hardware",
    "caching_allocator_disabled": "of the runtime",
    "caching_allocator_enable": "of the runtime",
    "check_error": "of the runtime",
    "clock_rate": "of the hardware",
    "cudaStatus": "of the runtime",
    "cudart": "of the runtime",
    "current_blas_handle": "of the runtime",
    "current_solver_handle": "of the runtime",
    "CUDAPluggableAllocator": "memory is the host's",
    "change_current_allocator": "memory is the host's",
    "get_arch_list": "of the compiler",
    "get_gencode_flags": "of the compiler",
    "has_half": "of the build",
    "has_magma": "of the build",
    "host_memory_stats": "pinned memory is not counted",
    "host_memory_stats_as_nested_dict": "pinned memory is not counted",
    "is_tf32_supported": "matmul.allow_hf32",
    "jiterator": "of the compiler",
    "list_gpu_processes": "of the hardware",
    "temperature": "of the hardware",
    "power_draw": "of the hardware",
    "nccl": "hccl",
    "nvtx": "mstx",
    "profiler": "torch_npu.profiler",
    "reset_accumulated_host_memory_stats": "pinned memory is not counted",
    "reset_peak_host_memory_stats": "pinned memory is not counted",
    "sparse": "the device has dense tensors only",
    "tunable": "of the hardware",
}


def test_names_of_cuda() -> None:
    wanted = {name for name in torch.cuda.__all__ if not name.endswith("Storage")}
    missing = {name for name in wanted if not hasattr(npu, name)}
    assert missing <= set(OF_CUDA), sorted(missing - set(OF_CUDA))
    assert not [name for name in OF_CUDA if hasattr(npu, name)], "no reason is needed for these any more"


def test_every_name_is_there_and_has_a_text() -> None:
    assert sorted(npu.__all__) == npu.__all__
    for name in npu.__all__:
        value = getattr(npu, name)
        assert not inspect.isroutine(value) or value.__doc__, name


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: npu.set_device_limit(True, 1), TypeError),
        (lambda: npu.get_device_limit(torch.device("npu:0")), TypeError),
        (lambda: npu.set_device_limit(99), AssertionError),
        (lambda: npu.set_stream_limit(5), AssertionError),
        (lambda: npu.get_stream_limit(None), AssertionError),
        (lambda: npu.reset_stream_limit("stream"), AssertionError),
        (lambda: npu.super_kernel_scope_begin(""), RuntimeError),
        (lambda: npu.super_kernel_scope_begin("  "), RuntimeError),
        (lambda: npu.super_kernel_scope_end("never begun"), RuntimeError),
        (lambda: torch.ops.npu.super_kernel_scope_begin(" "), RuntimeError),
        (lambda: npu.set_deterministic_level(4), ValueError),
        (lambda: npu.set_sync_debug_mode("loud"), RuntimeError),
        (lambda: npu.current_stream(True), TypeError),
        (lambda: npu.caching_allocator_delete(1), RuntimeError),
        (lambda: npu.mstx.range_end(12345), ValueError),
        (lambda: setattr(npu.matmul, "allow_hf32", 1), TypeError),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: npu.set_sync_debug_mode("warn"),
        lambda: npu.super_kernel_scope_begin("mlp"),
        lambda: setattr(npu.conv, "allow_hf32", False),
        lambda: npu.set_option({"NPU_FUZZY_COMPILE_BLACKLIST": "x"}),
        lambda: npu.NPUGraph().super_kernel_optimize(),
    ],
)
def test_hints_are_told(call: Callable[[], object]) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        call()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        hints._open.clear()  # no scope is left for another test
    assert len([text for text in said if "no effect on the simulated device" in text]) == 1
    npu.hints._open.clear()
    npu.hints._mode[0] = 0
    npu.hints.conv._allow = True


def test_super_kernels_in_pairs() -> None:
    torch.ops.npu.super_kernel_scope_begin("outer")
    npu.super_kernel_scope_begin("inner")
    with pytest.raises(RuntimeError, match="inner"):
        npu.super_kernel_scope_end("outer")
    npu.super_kernel_scope_end("inner")
    npu.super_kernel_scope_end()
    with pytest.raises(RuntimeError, match="no scope is open"):
        npu.super_kernel_scope_end()


def test_memory_for_others() -> None:
    before = npu.memory_allocated()
    address = npu.caching_allocator_alloc(1024)
    assert npu.memory_allocated() == before + 1024
    npu.caching_allocator_delete(address)
    assert npu.memory_allocated() == before
    npu.set_per_process_memory_fraction(0.5, 3)
    assert npu.get_per_process_memory_fraction(3) == 0.5
    npu.set_per_process_memory_fraction(1.0, 3)
    assert npu.device_memory_used() == npu.memory_reserved()


def test_pools_of_memory() -> None:
    pool = npu.MemPool()
    with npu.use_mem_pool(pool):
        x = torch.ones(100_000, device="npu")
    address, _other = x.data_ptr(), torch.ones(100_000, device="npu")
    assert [block["total_size"] for block in pool.snapshot()] == [400_384]
    del x
    assert pool.snapshot() == []
    with npu.use_mem_pool(pool):
        again = torch.ones(100_000, device="npu")
    assert again.data_ptr() == address
    graph = npu.NPUGraph()
    with npu.graph(graph, pool=pool.id):
        doubled = again * 2
    assert pool.use_count() == 2
    graph.replay()
    assert doubled[0].item() == 2
    graph.reset()
    assert pool.use_count() == 1
    with pytest.raises(NotImplementedError, match="does not accept an allocator"):
        npu.MemPool(allocator=object())


def test_blocks_are_listed(tmp_path: Path) -> None:
    _x = torch.ones(1000, device="npu:1")
    for device in (0, 1):
        segments = [each for each in npu.memory_snapshot() if each["device"] == device]
        assert sum(each["total_size"] for each in segments) == npu.memory_reserved(device)
        assert sum(each["allocated_size"] for each in segments) == npu.memory_allocated(device)
    npu.memory._record_memory_history()
    npu.memory._dump_snapshot(str(tmp_path / "memory.pickle"))
    assert pickle.loads((tmp_path / "memory.pickle").read_bytes())["segments"]


def test_old_types() -> None:
    half = torch.ones(2).type(npu.HalfTensor)
    assert half.type() == "torch.npu.HalfTensor"
    x = npu.FloatTensor([1.0, 2.0])
    assert x.tolist() == [1.0, 2.0]
    assert isinstance(x, npu.FloatTensor)
    assert not isinstance(x.cpu(), npu.FloatTensor)
    assert not isinstance(x, npu.HalfTensor)
    assert npu.LongTensor(2, 3).shape == (2, 3)


def test_ranges_are_seen_by_the_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        number = npu.mstx.range_start("a range")
        npu.mstx.mark("a mark")
        npu.mstx.range_end(number)
    assert {"a range", "a mark"} <= {event.name for event in seen.events()}


def test_precision_by_old_names() -> None:
    assert not npu.is_autocast_enabled()
    before = npu.get_autocast_dtype()
    npu.set_autocast_enabled(True)
    npu.set_autocast_dtype(torch.bfloat16)
    try:
        x = torch.ones(2, 2, device="npu")
        assert (x @ x).dtype == torch.bfloat16
    finally:
        npu.set_autocast_enabled(False)
        npu.set_autocast_dtype(before)


def test_what_the_profiler_takes() -> None:
    assert profiler.ProfilerLevel.Level1 in profiler.supported_profiler_level()
    assert profiler.AiCMetrics.PipeUtilization in profiler.supported_ai_core_metrics()
    assert profiler.ExportType.Db in profiler.supported_export_type()


def test_capture_mode_is_an_attribute() -> None:
    assert npu.npugraph_ex.__name__ == "torchair.npugraph_ex"
    with pytest.raises(AttributeError):
        npu.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "module",
    ["torch_npu", "torch_npu.npu", "torch_npu.npu.amp", "torch_npu.optim", "torch_npu.contrib.function"],
)
def test_missing_attribute_error_has_public_name(module: str) -> None:
    lacking = importlib.import_module(module)
    message = rf"^module '{module}' of the simulated device has no attribute 'NpuNone': dir\({module}\) lists"
    with pytest.raises(AttributeError, match=message) as error:
        lacking.NpuNone  # noqa: B018
    assert "torchair" not in str(error.value)
    assert not hasattr(lacking, "NpuNone")
    assert getattr(lacking, "NpuNone", 3) == 3


def test_operators_that_are_missing_can_be_added() -> None:
    with pytest.raises(AttributeError, match=r"torch\.library in the namespace `npu`"):
        torch_npu.npu_halve  # noqa: B018
    library = torch.library.Library("npu", "FRAGMENT")
    try:
        library.define("npu_halve(Tensor x) -> Tensor")
        library.impl("npu_halve", lambda x: x / 2, "PrivateUse1")
        assert torch_npu.npu_halve(torch.ones(2, device="npu")).tolist() == [0.5, 0.5]
    finally:
        library._destroy()


def test_the_version_is_a_module() -> None:
    version = importlib.import_module("torch_npu.version")
    assert version is torch_npu.version
    assert version.__version__ == torch_npu.__version__
    assert version.git_version == "Unknown"


@pytest.mark.parametrize(("module", "name"), [("grad_scaler", "GradScaler"), ("autocast_mode", "autocast")])
def test_modules_of_precision(module: str, name: str) -> None:
    for package in ("torch_npu.npu.amp", "torch.npu.amp"):
        assert getattr(importlib.import_module(f"{package}.{module}"), name) is getattr(npu.amp, name)
