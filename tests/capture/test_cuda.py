"""The same promises on a real GPU: CUDA graphs, streams, the caching allocator, random numbers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.capture.strategies.test_runner_property import AFTER, BEFORE, Call, follow
from tests.support.simulated_device import make
from torchair.codegen import CodegenOptions, build

CUDA = torch.device("cuda", 0)
pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch.cuda.synchronize()


def on_gpu(function: Callable[..., Any], roles: str = "p", key: tuple[Any, ...] = (), **options: Any) -> Any:
    return make(function, roles, key, device=CUDA, **options)[0]


def full(size: int, value: float) -> torch.Tensor:
    return torch.full((size,), value, device=CUDA)


def mlp(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight)
    return [x]


def test_replays_equal_eager() -> None:
    weights = [torch.randn(256, 256, device=CUDA) / 16 for _ in range(4)]
    runner = on_gpu(mlp, "pwwww")
    for _ in range(5):
        x = torch.randn(8, 256, device=CUDA)
        torch.testing.assert_close(runner.run(x, *weights)[0], mlp(x, *weights)[0])
    report = runner.report()
    assert report.why_not is None
    assert sum(row.replays for row in report.recordings) == 4


def test_function_of_its_own_output() -> None:
    runner = on_gpu(lambda x: [x * 2 + 1])
    x = full(1000, 0.0)
    for step in range(1, 12):
        (x,) = runner.run(x)
        assert x.unique().tolist() == [2.0**step - 1]
    assert len(runner.report().recordings) == 2


def test_all_outputs_kept() -> None:
    runner = on_gpu(lambda x: [x * 2])
    kept = [runner.run(full(1000, float(i)))[0] for i in range(20)]
    assert [y.unique().tolist() for y in kept] == [[2.0 * i] for i in range(20)]
    assert runner.report().bytes_copied_out == 18 * 4000


def test_accumulating_in_an_output() -> None:
    runner = on_gpu(lambda x: [x * 2])
    total = runner.run(full(1000, 1.0))[0]
    for _ in range(10):
        total += runner.run(full(1000, 1.0))[0]
    assert total.unique().tolist() == [22.0]


def write_row(cache: torch.Tensor, position: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
    cache.index_copy_(0, position, row[None])
    return [cache.sum(0)]


def test_cache_is_written_in_place_and_never_copied() -> None:
    cache = torch.zeros(4096, 1024, device=CUDA)
    want = torch.zeros_like(cache)
    runner = on_gpu(write_row, "mpp")
    address, peaks = cache.data_ptr(), []
    for step in range(8):
        position, row = torch.tensor([step], device=CUDA), torch.randn(1024, device=CUDA)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = runner.run(cache, position, row)[0].clone()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        expected = write_row(want, position, row)[0]
        own = torch.cuda.max_memory_allocated() - before  # what the ops themselves take as workspace
        torch.testing.assert_close(got, expected)
        assert torch.equal(cache, want)
    assert cache.data_ptr() == address
    # The control below does copy.
    assert peaks[0] < own + cache.nbytes // 4
    assert max(peaks[1:]) < cache.nbytes // 4


def test_the_byte_count_would_notice_a_copy() -> None:
    cache = torch.zeros(4096, 1024, device=CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    cache.clone()
    assert torch.cuda.max_memory_allocated() - before >= cache.nbytes


def test_moved_parameter_and_moved_cache() -> None:
    def step(weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        cache.add_(x * weight)
        return [cache * 1]

    runner = on_gpu(step, "wmp")
    weight, cache = full(100, 2.0), full(100, 0.0)
    for _ in range(3):
        runner.run(weight, cache, full(100, 1.0))
    assert cache.unique().tolist() == [6.0]
    weight = full(100, 5.0)
    assert runner.run(weight, cache, full(100, 1.0))[0].unique().tolist() == [11.0]
    cache = full(100, 100.0)
    assert runner.run(weight, cache, full(100, 1.0))[0].unique().tolist() == [105.0]
    assert sum(runner.report().recaptures.values()) == 2


@pytest.mark.filterwarnings("ignore:.*dropped before they are replayed:torchair.DegradedWarning")
def test_shape_churn_stays_right_and_bounded() -> None:
    runner = on_gpu(lambda n, x: [(x @ x.t()).relu().sum(1) + n], "sp", (0,), capture_limit=4)
    reserved = []
    for step in range(120):
        n = 16 * (1 + random.Random(step).randrange(8))
        x = torch.randn(n, 64, device=CUDA)
        torch.testing.assert_close(runner.run(n, x)[0], (x @ x.t()).relu().sum(1) + n)
        reserved.append(torch.cuda.memory_reserved())
    assert len({row.key for row in runner.report().recordings}) <= 4
    assert reserved[-1] <= reserved[60] + (64 << 20)


def test_limit_of_one_drops_and_records_again() -> None:
    runner = on_gpu(lambda n, x: [x + n], "sp", (0,), capture_limit=1)
    for n in (1, 1, 2, 2, 2, 1, 1, 1):
        assert runner.run(n, full(n, 1.0))[0].tolist() == [1.0 + n] * n
    assert runner.report().why_not is None


def test_threads_on_their_own_streams() -> None:
    runner = on_gpu(lambda n, x: [(x * 2).cumsum(0) * 1 + n], "sp", (0,))
    wrong: list[Any] = []

    def work(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for step in range(100):
                size = 1000 * (1 + (number + step) % 2)
                x = torch.full((size,), float(number + step % 7), device=CUDA)
                (y,) = runner.run(size, x)
                want = 2.0 * (number + step % 7) * torch.arange(1, size + 1, device=CUDA) + size
                if not torch.allclose(y, want):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_launch_on_another_stream_waits_for_readers() -> None:
    runner = on_gpu(lambda x: [x + 1])
    side, x = torch.cuda.Stream(), full(1 << 20, 7.0)
    runner.run(full(1 << 20, 0.0))
    (y,) = runner.run(full(1 << 20, 1.0))
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    seen = y.clone()  # runs after the sleep; y is let go before it has run
    del y
    with torch.cuda.stream(side):
        runner.run(x)
    torch.cuda.synchronize()
    assert seen.unique().tolist() == [2.0]


@pytest.mark.filterwarnings("ignore:a graph is not recorded:torchair.DegradedWarning")
def test_a_graph_that_reads_a_value_runs_directly() -> None:
    def program(cache: torch.Tensor) -> list[Any]:
        cache.add_(1)
        return [cache * cache.max().item()]

    runner = on_gpu(program, "m")
    cache = full(10, 0.0)
    for step in range(1, 5):
        assert runner.run(cache)[0].tolist() == [float(step * step)] * 10
    assert runner.report().why_not is not None
    # Neither the random generator nor later captures suffer from the one that broke off.
    torch.manual_seed(1)
    first = torch.rand(3, device=CUDA)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3, device=CUDA), first)
    other = on_gpu(lambda x: [x + 1])
    for _ in range(3):
        assert other.run(full(10, 1.0))[0].tolist() == [2.0] * 10
    assert other.report().why_not is None


def test_random_numbers_are_those_of_eager() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + torch.rand_like(x), torch.nn.functional.dropout(x + 1, 0.5)]

    runner = on_gpu(program, random=True)
    x = full(1000, 0.0)
    torch.manual_seed(3)
    got = [[y.clone() for y in runner.run(x)] for _ in range(5)]
    torch.manual_seed(3)
    want = [program(x) for _ in range(5)]
    assert all(torch.equal(a, b) for g, w in zip(got, want, strict=True) for a, b in zip(g, w, strict=True))
    assert runner.report().why_not is None


def test_inside_a_users_capture() -> None:
    runner = on_gpu(lambda x: [x * 3])
    x = full(10, 1.0)
    runner.run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = runner.run(x)
    x.fill_(2.0)
    graph.replay()
    assert y.tolist() == [6.0] * 10


def test_shared_pool_of_two_graphs() -> None:
    token = torch.cuda.graph_pool_handle()
    first = on_gpu(lambda x: [(x * 2).relu() + 1], pool=token)
    second = on_gpu(lambda x: [(x * 3).relu() + 1], pool=token)
    for value in range(1, 6):
        a = first.run(full(5000, float(value)))[0]
        b = second.run(a)[0]
        assert (a.unique().tolist(), b.unique().tolist()) == ([2.0 * value + 1], [6.0 * value + 4])


def test_outputs_outlive_the_runner() -> None:
    runner = on_gpu(lambda x: [x * 2])
    runner.run(full(1000, 1.0))
    (y,) = runner.run(full(1000, 1.0))
    del runner
    torch.cuda.empty_cache()
    junk = [torch.zeros(1000, device=CUDA) for _ in range(50)]
    assert y.unique().tolist() == [2.0]
    del junk


@pytest.mark.filterwarnings("ignore:.*moved on every call:torchair.DegradedWarning")
@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_calls_equals_running_directly(seed: int) -> None:
    draw = random.Random(seed)
    calls = [
        Call(
            size=draw.randint(2, 4),
            weight=draw.randint(0, 1),
            cache=draw.randint(0, 2),
            before=draw.choice(BEFORE),
            after=draw.choice(AFTER),
            gradients=draw.random() < 0.5,
        )
        for _ in range(14)
    ]
    options = {
        "capture_limit": draw.randint(1, 3),
        "clone_input": draw.random() < 0.5,
        "clone_output": draw.random() < 0.3,
        "force_recapture": draw.random() < 0.2,
        "reuse_pool": draw.random() < 0.7,
    }
    follow(calls, options, CUDA)


@pytest.mark.parametrize("count", [2, 6], ids=["few", "many"])
def test_inputs_of_every_layout_are_copied(count: int) -> None:
    def total(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [sum(inputs, torch.zeros((), device=CUDA))]

    runner = on_gpu(total, "p" * count)
    for turn in range(4):
        inputs = [torch.randn(8, 8, device=CUDA) for _ in range(count)]
        if turn > 1:
            inputs[0] = torch.randn(8, 8, device=CUDA).t()
        torch.testing.assert_close(runner(list(inputs)), total(*inputs))


def test_an_input_whose_old_memory_is_gone() -> None:
    """The graph copies from where an input was in the call before; that memory may have been given back."""
    runner = on_gpu(lambda x: [x[:4] + 1])
    for turn in range(4):
        x = full((turn + 1) << 24, float(turn))[: 1 << 24]
        assert runner.run(x)[0].tolist() == [turn + 1.0] * 4
        del x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def test_tuned_programs_take_products_with_a_vector_apart() -> None:
    """What makes static kernels worth their while for a decode step."""

    weight, row = torch.randn(256, 128, device=CUDA), torch.randn(1, 256, device=CUDA)
    gm = make_fx(lambda x, w: [torch.mm(x, w)], tracing_mode="fake")(row, weight)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    program = build("inductor", gm, fakes, CodegenOptions(decomposed=False, tuned=True))
    assert "extern_kernels.mm" not in program.source
    torch.testing.assert_close(program([row, weight])[0], row @ weight, rtol=1e-4, atol=1e-4)
