"""Streams that run beside each other: a wait that is missing shows, and is named."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import torchair
from tests.support.slow import slow
from torchair.core.errors import BadOption
from torchair.sim import interleaved, races_checked


def two_streams(waits: bool) -> list[float]:
    """One stream makes what another reads."""
    one, two = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(one):
        for _ in range(3):
            x.add_(1)
    if waits:
        two.wait_stream(one)
    with torch.npu.stream(two):
        y = x * 10
    two.synchronize()
    return y.cpu().tolist()


def captured(waits: bool) -> list[float]:
    """The same in a graph."""
    x = torch.zeros(4, device="npu")
    main, side, graph = torch.npu.Stream(), torch.npu.Stream(), torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=main):
        side.wait_stream(main)
        with torch.npu.stream(side):
            for _ in range(3):
                x.add_(1)
        if waits:
            main.wait_stream(side)
        y = x * 10
        if not waits:
            main.wait_stream(side)
    torch.npu.synchronize()
    graph.replay()
    torch.npu.synchronize()
    return y.cpu().tolist()


PROGRAMS = pytest.mark.parametrize("program", [two_streams, captured])
RIGHT = [30.0] * 4


@PROGRAMS
@pytest.mark.parametrize("seeds", [200, slow(1000)])
def test_with_the_wait_all_orders_agree(program: Callable[[bool], list[float]], seeds: int) -> None:
    for seed in range(seeds):
        with interleaved(seed):
            assert program(True) == RIGHT, seed


@PROGRAMS
def test_without_it_some_order_is_wrong_and_its_seed_tells_it_again(
    program: Callable[[bool], list[float]],
) -> None:
    results = {}
    for seed in range(50):
        with interleaved(seed):
            results[seed] = program(False)
    wrong = [seed for seed, result in results.items() if result != RIGHT]
    assert wrong
    assert len(wrong) < len(results), "and some are right by chance"
    for seed in wrong[:5]:
        with interleaved(seed):
            assert program(False) == results[seed]


@PROGRAMS
def test_the_check_names_both_ops_and_the_wait(program: Callable[[bool], list[float]]) -> None:
    with races_checked():
        assert program(True) == RIGHT
        with pytest.raises(RuntimeError, match="race") as raised:
            program(False)
    text = str(raised.value)
    assert re.search(r"aten::mul\S* on stream \d+ \(\S+test_order.py:\d+\) reads", text), text
    assert re.search(r"aten::add_? on stream \d+ \(\S+test_order.py:\d+\) writes", text), text
    assert re.search(r"let stream \d+ wait for stream \d+", text), text


def test_what_orders_streams() -> None:
    one, two = torch.npu.Stream(), torch.npu.Stream()

    def written_then_read(between: Callable[[], object]) -> None:
        x = torch.zeros(4, device="npu")
        torch.npu.synchronize()
        with torch.npu.stream(one):
            x.add_(1)
        between()
        with torch.npu.stream(two):
            x.sum()

    def by_event() -> None:
        event = torch.npu.Event()
        event.record(one)
        event.wait(two)

    def by_event_and_host() -> None:
        event = torch.npu.Event()
        event.record(one)
        event.synchronize()

    with races_checked():
        for between in (by_event, by_event_and_host, one.synchronize, torch.npu.synchronize):
            written_then_read(between)
        for between in (lambda: None, two.synchronize, lambda: one.wait_stream(two)):
            with pytest.raises(RuntimeError, match="race"):
                written_then_read(between)


def test_two_that_read_and_parts_that_differ_are_no_race() -> None:
    one, two = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    with races_checked():
        with torch.npu.stream(one):
            x.sum()
        with torch.npu.stream(two):
            x.sum()
        torch.npu.synchronize()
        with torch.npu.stream(one):
            x[:4].add_(1)
        with torch.npu.stream(two):
            x[4:].add_(1)


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_compiled_models_agree_in_every_order(mode: str) -> None:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).npu().eval()
    run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    x = torch.randn(3, 4, device="npu")
    with torch.no_grad():
        want = model(x).cpu()
        for _ in range(3):
            run(x)
        for seed in range(20):
            with interleaved(seed):
                side = torch.npu.Stream()
                side.wait_stream(torch.npu.current_stream())
                with torch.npu.stream(side):
                    y = run(x)
                torch.npu.current_stream().wait_stream(side)
                torch.testing.assert_close(y.cpu(), want)


def test_a_tensor_that_is_resized_while_work_on_it_waits() -> None:
    for seed in range(100):
        with interleaved(seed):
            ones, target = torch.ones(1000, device="npu"), torch.zeros(4, device="npu")
            for _ in range(4):
                target.add_(1)
            before = target * 2
            target.resize_(0)
            torch.add(ones, ones, out=target)
            assert before.tolist() == [8.0] * 4
            assert target.sum().item() == 2000


def test_results_of_another_device_than_the_current_one() -> None:
    for seed in range(50):
        with interleaved(seed):
            x = torch.zeros(3, device="npu:1")
            for _ in range(4):
                x.add_(1)
            assert len(x.nonzero()) == 3


def test_indices_are_read() -> None:
    side, x = torch.npu.Stream(), torch.arange(8.0, device="npu")
    index = torch.zeros(3, dtype=torch.int64, device="npu")
    torch.npu.synchronize()
    with races_checked():
        with torch.npu.stream(side):
            index.add_(1)
        with pytest.raises(RuntimeError, match="race: aten::index"):
            x[index]


def test_training_agrees_in_every_order() -> None:
    def step() -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2)).npu()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 4, device="npu")).square().sum().backward()
            optimizer.step()
        return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])

    want = step()
    for seed in range(5):
        with interleaved(seed), races_checked():
            torch.testing.assert_close(step(), want, rtol=0, atol=0)


def test_wait_without_record_is_a_deadlock() -> None:
    stream, event = torch.npu.Stream(), torch.npu.ExternalEvent()
    with interleaved(0):
        event.wait(stream)
        with torch.npu.stream(stream):
            x = torch.ones(1, device="npu")
        with pytest.raises(RuntimeError, match=r"deadlock.*ExternalEvent\.wait"):
            stream.synchronize()
        event.record(torch.npu.Stream())
        stream.synchronize()
        assert x.item() == 1


def test_bad_seeds() -> None:
    for seed in (-1, 1 << 64, True, "1"):
        with pytest.raises(BadOption, match="seed"), interleaved(seed):  # type: ignore[arg-type]
            pass


def test_an_order_that_cannot_end_is_over() -> None:
    with pytest.raises(RuntimeError, match="deadlock"), interleaved(0):
        torch.npu.ExternalEvent().wait(torch.npu.Stream())
    with interleaved(1):
        assert torch.ones(3, device="npu").sum().item() == 3


def test_a_graph_may_go_before_its_replay_is_done() -> None:
    """Garbage is collected whenever Python likes."""
    x, event, graph = torch.ones(2, device="npu"), torch.npu.ExternalEvent(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        event.wait()
        event.reset()
        y = x + 1
    torch.npu.synchronize()
    with interleaved(0):
        x.fill_(5)
        graph.replay()
        del graph
        event.record(torch.npu.Stream())
        torch.npu.synchronize()
    assert y.tolist() == [6.0, 6.0]
