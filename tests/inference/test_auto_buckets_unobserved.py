"""A model does not notice that gears are chosen, or how it is found out whether calls may be padded: its
state, its random numbers and what it prints are those of one run a call.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.support.slow import slow
from torchair.inference import auto_gears

HERE = sys.modules["torchair.inference._auto_buckets"]
SIZES = [4, 8] * 4 + [7, 7, 8, 4, 3, 7, 7]


@pytest.fixture(autouse=True)
def _calls_as_captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled: graphs run as Dynamo captured them."""
    monkeypatch.setattr(HERE, "get_npu_backend", lambda **_: lambda gm, _: gm.forward)
    torch.compiler.reset()
    with torch.no_grad():
        yield


Made = tuple[Callable[..., Any], Callable[[], Any]]
"""A model, and what can be seen of its state."""


def closure_tensor() -> Made:
    cache = torch.zeros(())
    return lambda x: x * 2 + cache.add_(1), lambda: cache.item()


def closed_over_batch_norm() -> Made:
    norm = nn.BatchNorm1d(3)
    norm.train()
    return lambda x: norm(x.mT).mT, lambda: [each.tolist() for each in norm.buffers()]


def own_buffer() -> Made:
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.past: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.past.append(1)
            return x * 2

    model = Counting()
    return model, lambda: (model.calls.item(), len(model.past))


COUNTER = 0


def counter_of_the_module() -> Made:
    global COUNTER
    COUNTER = 0

    def count(x: torch.Tensor) -> torch.Tensor:
        global COUNTER
        COUNTER += 1
        return x * 2

    return count, lambda: COUNTER


def sizes_in_a_list() -> Made:
    sizes: list[int] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.shape[1])
        return x * 2

    return note, lambda: [int(size) for size in sizes]


def results_in_a_list() -> Made:
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.sin())
        return x * 2

    return keep, lambda: [each.shape for each in kept]


def last_result_as_attribute() -> Made:
    class Keeping(nn.Module):
        last: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x.cos()
            return x * 2

    model = Keeping()
    return model, lambda: model.last.tolist()


def counter_of_an_object() -> Made:
    class Stats:
        calls = 0

    stats = Stats()

    def count(x: torch.Tensor) -> torch.Tensor:
        stats.calls += 1
        return x.sin() * 2

    return count, lambda: stats.calls


def prints() -> Made:
    lines: list[str] = []

    def show(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("called", file=sys.stderr)
        sys.stderr.flush()
        lines.append("called")
        return y.cos()

    return show, lambda: len(lines)


def graph_break_before() -> Made:
    seen: list[int] = []

    def cut(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        seen.append(1)
        return x.sin()

    return cut, lambda: len(seen)


def graph_break_after() -> Made:
    seen: list[Any] = []

    def cut(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        seen.append(y.shape)
        return y

    return cut, lambda: seen


def draws_by_python() -> Made:
    return lambda x: x * random.random(), random.getstate


def draws() -> Made:
    return lambda x: x + torch.rand(3, 1), lambda: torch.get_rng_state().tolist()


def draws_as_many_as_the_size() -> Made:
    dropout = nn.Dropout(0.5)
    return lambda x: dropout(x) * 2, lambda: torch.get_rng_state().tolist()


def rows_of_a_cache() -> Made:
    cache = torch.zeros(3, 16)

    def cached(x: torch.Tensor) -> torch.Tensor:
        cache[:, : x.shape[1]] += x
        return x * 2

    return cached, cache.tolist


def functions_that_dynamo_does_not_enter() -> Made:
    seen: list[int] = []

    @torch.compiler.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x.sin()

    return lambda x: opaque(x) * 2, lambda: None


def custom_ops() -> Made:
    return lambda x: noted(x) * 2, lambda: len(NOTED)


NOTED: list[int] = []


@torch.library.custom_op("auto_gears_test::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    NOTED.append(1)
    return x.sin()


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


PADDED = (counter_of_an_object, draws)
"""Models that are padded as well; with the others padding would be seen, and ends before it begins."""


@pytest.mark.parametrize(
    "make",
    [
        *(closure_tensor, closed_over_batch_norm, sizes_in_a_list, counter_of_an_object, draws, custom_ops),
        *map(slow, (own_buffer, counter_of_the_module, results_in_a_list, last_result_as_attribute, prints)),
        *map(slow, (graph_break_before, graph_break_after, draws_by_python, draws_as_many_as_the_size)),
        *map(slow, (rows_of_a_cache, functions_that_dynamo_does_not_enter)),
    ],
)
@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
def test_a_call_is_one_call(make: Callable[[], Made], capfd: pytest.CaptureFixture[str]) -> None:
    def follow(run: Callable[..., Any]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(0)
        random.seed(0)
        return [run(torch.rand(3, n, generator=generator) + 1) for n in SIZES]

    NOTED.clear()
    model, state = make()
    expected, after, printed = follow(model), state(), capfd.readouterr().err.count("called")
    NOTED.clear()
    model, state = make()
    run = auto_gears(model, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    torch.testing.assert_close(follow(run), expected)
    assert state() == after
    assert capfd.readouterr().err.count("called") == printed
    assert run.report().exact >= 1
    assert bool(run.report().padded) == (make in PADDED), str(run.report())


class Switch:
    """State that a model reads and tests change."""

    is_on = False


def test_a_call_that_raises_is_one_call() -> None:
    calls, table = torch.zeros(()), torch.randn(9, 2)

    def looked_up(x: torch.Tensor) -> torch.Tensor:
        return calls.add_(1) + nn.functional.embedding(x, table)

    run = auto_gears(looked_up, dims={"x": 1}, after=8, most=3)
    _ = [run(torch.ones(3, n, dtype=torch.long)) for n in [4, 8] * 4]
    for n in (8, 4):
        with pytest.raises(IndexError):
            run(torch.full((3, n), 99))
    run(torch.ones(3, 8, dtype=torch.long))
    assert (calls.item(), run.report().exact) == (11, 2)


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
def test_a_call_that_raises_between_graphs_is_one_call() -> None:
    calls: list[int] = []

    def limited(x: torch.Tensor) -> torch.Tensor:
        count(calls)
        if x.sum() > 1000:
            raise ValueError("too much")
        return x * 2

    run = auto_gears(limited, dims={"x": 1}, after=8, most=3)
    _ = [run(torch.ones(3, n)) for n in [4, 8] * 4]
    with pytest.raises(ValueError, match="too much"):
        run(torch.full((3, 8), 999.0))
    assert len(calls) == 9


@torch.compiler.disable
def count(calls: list[int]) -> None:
    """Code that Dynamo leaves to Python."""
    calls.append(1)


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
def test_a_graph_break_that_comes_later_runs_nothing_twice() -> None:
    switch, calls = Switch(), []

    def counted(x: torch.Tensor) -> torch.Tensor:
        if switch.is_on:
            count(calls)
        return x.sin()

    run = auto_gears(counted, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    _ = [run(torch.ones(3, n)) for n in [4, 8] * 4 + [7, 7]]
    assert run.report().padded == 1
    switch.is_on = True
    for n in [7, 6, 8, 7, 4]:
        torch.testing.assert_close(run(torch.ones(3, n)), torch.ones(3, n).sin())
    assert len(calls) == 5


def test_a_gear_that_fails_is_replaced_by_the_dynamic_program(monkeypatch: pytest.MonkeyPatch) -> None:
    run = auto_gears(lambda x: x.sin(), dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    _ = [run(torch.ones(3, n)) for n in [4, 8] * 4]

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(HERE, "get_npu_backend", lambda **_: lambda gm, _: fail)
    run._backend = HERE.get_npu_backend()
    (form,) = run._forms.values()
    form.begin(run._compiled(dynamic=True), form.gears)
    with pytest.warns(torchair.DegradedWarning, match="without gears: RuntimeError: out of memory"):
        assert torch.equal(run(torch.ones(3, 8)), torch.ones(3, 8).sin())


def test_what_is_not_padded_is_reported_before_a_padded_call() -> None:
    model, _ = closure_tensor()
    run = auto_gears(model, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    with pytest.warns(torchair.DegradedWarning, match="writes its arguments or its state.*check=False"):
        _ = [run(torch.ones(3, n)) for n in [4, 8] * 4]
    assert run.report().gears == ((4, 8),)


def test_parameters_can_be_swapped() -> None:
    """Fake tensors of a graph refer to parameters, which then cannot be swapped: none is kept."""
    linear = nn.Linear(3, 3)
    run = auto_gears(lambda x: linear(x.mT), dims={"x": 1}, pad={"x": 0.0}, after=4, most=3)
    for n in [4, 8, 4, 8, 7, 7]:
        run(torch.ones(3, n))
    assert run.report().padded
    known = run._forms[next(iter(run._forms))].padding
    assert all(not node.meta for node in known.traced.gm.graph.nodes)
