"""Which gears are chosen, and which calls they serve, within the budgets: results are eager's whatever comes.

Nothing is compiled here, graphs run as Dynamo captures them: how a call is served does not depend on more.
`tests/inference/test_auto_buckets.py` compiles them.
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
from tests.support.compile import make_config
from torchair.core.errors import BadGears
from torchair.inference import auto_gears
from torchair.inference._bucket_choice import choose, cost, serving

HERE = sys.modules["torchair.inference._auto_buckets"]


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(HERE, "get_npu_backend", lambda **_: lambda gm, _: gm.forward)
    torch.compiler.reset()
    with torch.no_grad():
        yield


def auto(model: Callable[..., Any], **how: Any) -> Any:
    return auto_gears(model, **{"dims": {"x": 1}, "pad": {"x": 0.0}, "after": 8, "most": 3, **how})


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x.sin() * by


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(1)


def every(run: Any, sizes: list[int], *args: Any, of: float = 1.0, **kwargs: Any) -> list[Any]:
    return [run(torch.full((3, n), of), *args, **kwargs) for n in sizes]


def follow(run: Any, model: Callable[..., Any], sizes: list[int], **kwargs: Any) -> None:
    for n in sizes:
        x = torch.randn(3, n)
        torch.testing.assert_close(run(x, **kwargs), model(x, **kwargs))


def test_gears_are_the_sizes_that_save_most() -> None:
    assert choose({10: 100, 20: 100, 3: 1}, 2, 1.0, may_pad=True) == (10, 20)
    assert choose({10: 5, 11: 5, 12: 90}, 1, 1.0, may_pad=True) == (12,)
    assert choose({5: 10, 7: 1, 9: 10}, 8, 1.0, may_pad=False) == (5, 7, 9)
    assert choose({5: 10, 7: 1, 9: 10}, 2, 1.0, may_pad=False) == (5, 9)
    assert choose({0: 50, 1: 50}, 4, 1.0, may_pad=True) == ()
    assert choose({}, 4, 1.0, may_pad=True) == ()


def test_the_choice_is_the_best_there_is() -> None:
    """Against all choices, of small numbers of sizes."""
    rng = random.Random(1)
    for _ in range(30):
        counts = {size: rng.randrange(1, 20) for size in rng.sample(range(2, 40), 6)}
        every: list[tuple[int, ...]] = [()]
        for size in sorted(counts):
            every += [(*gears, size) for gears in every]
        best = min(cost(counts, gears, 1.0, may_pad=True) for gears in every if len(gears) <= 3)
        found = cost(counts, choose(counts, 3, 1.0, may_pad=True), 1.0, may_pad=True)
        assert found <= best + 3 * 0.005, "but for gears that are not worth it"


def test_thousands_of_sizes_are_chosen_from_quickly() -> None:
    gears = choose(dict.fromkeys(range(2, 5000), 1), 8, 1.0, may_pad=True)
    assert len(gears) == 8
    assert gears[-1] == 4999


@pytest.mark.parametrize(
    ("size", "gear"), [(8, 8), (5, 8), (3, None), (9, 16), (17, None), (0, None), (1, None)]
)
def test_which_gear_serves(size: int, gear: int | None) -> None:
    assert serving(size, (8, 16), 1.0, may_pad=True) == gear
    assert serving(size, (8, 16), 1.0, may_pad=False) == (size if size in (8, 16) else None)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"dims": {}}, "names arguments"),
        ({"dims": [1]}, "names arguments"),
        ({"dims": {"y": 1}}, "no argument 'y'"),
        ({"dims": {"x": "1"}}, "is an int"),
        ({"dims": {"x": 1}, "pad": {"z": 0}}, "which dims does not"),
        ({"dims": {"args": 0}, "model": lambda *args: args}, "no argument 'args'"),
        ({"dims": {"rest": 0}, "model": lambda **rest: rest}, "no argument 'rest'"),
        ({"dims": {1: 0}, "model": lambda **rest: rest}, "no argument 1"),
        ({"dims": {"input": 0}, "model": torch.sin}, "names of the model's arguments"),
        ({"dims": {"input": 0}, "model": 5}, "a module or a function"),
        ({"dims": {"x": 1}, "pad": ["x"]}, "pad names arguments"),
        ({"dims": {"x": 1}, "pad": {"x": "0"}}, "is a number"),
        ({"dims": {"x": 1}, "pad": {"x": None}}, "is a number"),
        ({"dims": {"x": 1}, "crop": "logits"}, "crop is True"),
        ({"dims": {"x": 1}, "crop": None}, "crop is True"),
        ({"dims": {"x": 1}, "crop": {"logits": "1"}}, "names or places"),
        ({"dims": {"x": 1}, "crop": {0: True}}, "names or places"),
        ({"dims": {"x": 1}, "check": "no"}, "True or False"),
        ({"dims": {"x": 1}, "waste": float("nan")}, "0 and more"),
        ({"dims": {"x": 1}, "waste": float("inf")}, "0 and more"),
        ({"dims": {"x": 1}, "after": float("inf")}, "0 and more"),
        ({"dims": {"x": 1}, "after": 2.5}, "0 and more"),
        ({"dims": {"x": 1}, "seconds": float("nan")}, "0 and more"),
        ({"dims": {"x": 1}, "memory_bytes": float("nan")}, "0 and more"),
        ({"dims": {"x": 1}, "config": {}}, "a CompilerConfig"),
        ({"dims": {"x": 1}, "most": 0}, "1 to 100 gears"),
        ({"dims": {"x": 1}, "waste": -1}, "0 and more"),
        ({"dims": {"x": 1}, "after": None}, "0 and more"),
        ({"dims": {"x": 1}, "seconds": "1"}, "0 and more"),
        ({"dims": {"x": 1}, "seconds": -1}, "0 and more"),
        ({"dims": {"x": 1}, "memory_bytes": -1}, "0 and more"),
        ({"dims": {"x": 1}, "config": make_config({}, "reduce-overhead")}, "graph mode"),
    ],
)
def test_auto_buckets_refuses_invalid_arguments(how: dict[str, Any], text: str) -> None:
    with pytest.raises(BadGears, match=text):
        auto_gears(**{"model": lambda x: x, **how})


def test_without_values_nothing_is_padded() -> None:
    run = auto(scaled, pad=None)
    follow(run, scaled, [4, 8] * 4 + [3, 7, 8, 4])
    report = run.report()
    assert (report.padded, report.exact) == (0, 3)
    assert report.why_not_padded == "no values to pad with"


def test_sizes_without_symbols() -> None:
    run = auto(scaled, waste=9.0)
    follow(run, scaled, [0, 1, 4, 8, 0, 1, 4, 8, 0, 1, 1, 4, 3, 3])
    report = run.report()
    assert report.gears
    assert report.dynamic["no gear fits"] == 3, "what calls of size 0 and 1 do is not known from others"
    assert report.padded >= 1


def test_a_padding_that_changes_results_is_found() -> None:
    run = auto(mean)
    with pytest.warns(torchair.DegradedWarning, match="mean reduces the padded dimension"):
        follow(run, mean, [4, 8] * 4)
    follow(run, mean, [7, 7, 3, 8, 4])
    report = run.report()
    assert report.padded == 0
    assert report.why_not_padded is not None
    assert report.exact >= 2


def test_a_model_that_writes_is_not_padded() -> None:
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * 2

    model = Counting()
    run = auto(model, crop={0: 1})
    with pytest.warns(torchair.DegradedWarning, match="writes its arguments or its state"):
        every(run, [4, 8] * 4)
    every(run, [7, 7, 3, 8])
    assert model.calls.item() == 12, "each call is one call"
    assert run.report().padded == 0


def test_outputs_of_other_sizes_are_not_padded() -> None:
    run = auto(lambda x: x[:, 1:] + 0)
    with pytest.warns(torchair.DegradedWarning, match="pads no calls"):
        follow(run, lambda x: x[:, 1:], [4, 8] * 4 + [7, 8])
    assert run.report().exact >= 1


def test_outputs_may_stay_padded() -> None:
    run = auto(scaled, crop=False)
    follow(run, scaled, [4, 8] * 4)
    assert run(torch.ones(3, 7)).shape == (3, 8)


def test_bucket_choice_keeps_to_budget() -> None:
    run = auto(scaled, seconds=0)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ()
    run = auto(scaled, memory_bytes=2 * 2 * 3 * 4 * 5)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ((4,),), "eight are too much"
    assert 0 < run.report().bytes <= 2 * 2 * 3 * 4 * 5
    run = auto(scaled, pad=None, most=1)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ((8,),)


def test_other_sizes_later_are_chosen_again_and_not_for_ever() -> None:
    run = auto(scaled, check=False)
    follow(run, scaled, [4] * 8 + [30] * 20)
    assert run.report().gears == ((30,),)
    for n in range(40, 140, 20):
        follow(run, scaled, [n] * 9)
    assert run.report().choices == 4


def test_other_arguments_have_gears_of_their_own() -> None:
    run = auto(scaled, most=4)
    for by in (2.0, 3.0):
        follow(run, scaled, [4, 8] * 5, by=by)
    assert len(run.report().gears) == 2
    assert "other arguments differ from call to call" not in run.report().dynamic
    run = auto(scaled, most=8)
    for by in range(5):
        follow(run, scaled, [4] * 10, by=float(by))
    report = run.report()
    assert (len(report.gears), report.dynamic["other arguments differ from call to call"]) == (4, 3)


def test_calls_that_have_no_gear() -> None:
    def add(x: torch.Tensor, y: Any = None) -> torch.Tensor:
        return x + (0 if y is None else y[0] if isinstance(y, list) else y)

    run = auto(add, dims={"x": 1, "y": 1}, pad={"x": 0.0, "y": 0.0})
    x = torch.randn(3, 4)
    torch.testing.assert_close(run(x, [x]), x + x)
    torch.testing.assert_close(run(x, torch.ones(3, 1)), x + 1)
    with torch.enable_grad():
        run(x.clone().requires_grad_()).sum().backward()
    with pytest.raises(TypeError):
        run()
    assert len(run.report().dynamic) == 4


def test_failing_bucket_warns_and_serves_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(HERE, "set_dim_gears", fail)
    run = auto(scaled)
    with pytest.warns(torchair.DegradedWarning, match="on purpose"):
        follow(run, scaled, [4, 8] * 5)
    assert run.report().gears == ()


def test_rare_forms_do_not_affect_choice() -> None:
    run = auto(scaled)
    for by in range(100):
        follow(run, scaled, [4], by=float(by))
    follow(run, scaled, [4, 8] * 5)
    assert run.report().gears == ((4, 8),)
    assert len(run._forms) <= HERE.WAITING


def test_the_order_of_keywords_makes_no_form() -> None:
    run = auto(lambda x, **by: x * by["a"] + by["b"], most=8)
    for _ in range(6):
        run(torch.ones(3, 4), a=1.0, b=2.0)
        run(torch.ones(3, 8), b=2.0, a=1.0)
    assert run.report().gears == ((4, 8),)


def test_other_strides_are_another_form() -> None:
    """Torch compiles them apart, and knows of no gears then."""
    run = auto(scaled, most=4)
    for n in [4, 8] * 5:
        run(torch.ones(3, n))
        run(torch.ones(n, 3).t())
    assert run.report().gears == ((4, 8), (4, 8))


# Padding.


def tried(x: torch.Tensor) -> torch.Tensor:
    """There is no rule for `tril`."""
    return x.tril() * 2


def test_zeros_prove_nothing() -> None:
    """A warm-up with zeros is common: what is not proved is tried with other numbers as well."""
    run = auto(lambda x: nn.functional.pad(x + x[:, :1], (-1, 1)))
    with pytest.warns(torchair.DegradedWarning, match="other numbers"):
        every(run, [4, 8] * 4 + [7] * 3, of=0.0)
    assert run.report().padded == 0


def test_what_is_not_proved_is_tried() -> None:
    run = auto(tried)
    follow(run, tried, [4, 8] * 4 + [7] * 3)
    report = run.report()
    assert (report.why_not_padded, report.padded) == (None, 2)


def test_what_differs_later_is_never_served() -> None:
    def padded_counts(x: torch.Tensor) -> torch.Tensor:
        return x + (x[:, :1] > 5) * x.shape[1]

    run = auto(padded_counts)
    with pytest.warns(torchair.DegradedWarning, match="uses the size as a number"):
        follow(run, padded_counts, [64] * 8 + [63] * 10)
    every(run, [63] * 6, of=9.0)
    assert run.report().padded == 0


def test_other_branches_are_other_models() -> None:
    """Shapes and flags that a model branches on: what is known of one graph is not believed of another."""

    class Branching(nn.Module):
        takes_mean = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.takes_mean:
                return x - x.mean(1, keepdim=True)
            return x * 2 if x.shape[1] > 5 else x * 3

    model = Branching()
    run = auto(model, dims={"x": 1}, waste=2.0)
    follow(run, model, [6, 8] * 4 + [7] * 3 + [5, 4, 3])
    assert run.report().padded == 2, "what is shorter goes another way"
    model.takes_mean = True
    with pytest.warns(torchair.DegradedWarning, match="mean reduces the padded dimension"):
        follow(run, model, [7] * 4)
    assert run.report().padded == 2


def test_numbers_among_outputs_are_compared() -> None:
    def sized(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, x.shape[1]

    run = auto(sized, crop={0: 1})
    with pytest.warns(torchair.DegradedWarning, match="a number that depends on the size"):
        assert [run(torch.ones(3, n))[1] for n in [4, 8] * 4 + [7, 7]] == [4, 8] * 4 + [7, 7]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("crop", [False, {0: 1}])
def test_a_cache_is_written_once(crop: Any, inference: bool) -> None:
    def cached(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache[:, : x.shape[1]] += x
        return x * 2

    with torch.inference_mode(inference):
        run, cache = auto(cached, pad={"x": 5.0}, crop=crop), torch.zeros(3, 16)
        with pytest.warns(torchair.DegradedWarning, match="writes its arguments or its state"):
            every(run, [4, 8] * 4, cache)
        cache.zero_()
        every(run, [7, 7], cache)
    assert cache[0].tolist() == [2.0] * 7 + [0.0] * 9
    assert run.report().why_not_padded == "the model writes its arguments or its state"


def test_random_numbers_are_those_of_eager() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape[0], 1)

    def drawn(model: Callable[..., Any]) -> list[float]:
        torch.manual_seed(0)
        return [model(torch.zeros(3, n))[0, 0].item() for n in [4, 8] * 4 + [7] * 4]

    assert drawn(auto(noisy)) == drawn(noisy)


def test_each_form_is_padded_or_not() -> None:
    def dropping(x: torch.Tensor, drops: bool = False) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, drops) * 2

    run = auto(dropping, most=8)
    with pytest.warns(torchair.DegradedWarning, match="draws as many random numbers"):
        every(run, [4, 8] * 4 + [7] * 2, drops=True)
    follow(run, dropping, [4, 8] * 4 + [7] * 3)
    assert run.report().padded == 2


# Budgets and time.


def test_forms_share_the_budget_of_memory() -> None:
    limit = 2 * 2 * 3 * 4 * 8
    run = auto(scaled, memory_bytes=limit, most=8)
    for by in (2.0, 3.0, 4.0):
        follow(run, scaled, [4, 8] * 5, by=by)
    assert run.report().gears == ((4, 8),)
    assert run.report().bytes <= limit


def test_outputs_may_grow_faster_than_the_size() -> None:
    run = auto(lambda x: x.mT @ x, memory_bytes=100_000, pad=None)
    for n in [2] + [200] * 12:
        run(torch.ones(1, n))
    assert run.report().gears == ((2,),), "200 x 200 numbers, twice, are more"


def test_the_first_call_is_never_chosen_by() -> None:
    """Nobody knows yet what it takes, or what its outputs are."""
    run = auto(scaled, after=1, memory_bytes=1)
    follow(run, scaled, [4] * 4)
    assert run.report().gears == ()
    run = auto(scaled, after=1, crop={0: 1}, waste=0.2)
    follow(run, scaled, [64] * 4 + [63] * 3)
    assert (run.report().padded, run.report().dynamic["to compare with"]) == (2, 1)


def test_a_call_of_one_chooses_nothing() -> None:
    """Its shapes say nothing of others: the next call does."""
    run = auto(scaled)
    follow(run, scaled, [8] * 7 + [1, 8] + [7] * 4)
    report = run.report()
    assert (report.gears, report.choices, report.why_not_padded) == (((8,),), 1, None)
    assert report.padded >= 2


def test_what_is_built_stays_when_the_budget_is_spent() -> None:
    run = auto(scaled, seconds=1000.0)
    follow(run, scaled, [8] * 14)
    run._seconds = 1001.0
    follow(run, scaled, ([30] * 4 + [8] * 4) * 3)
    report = run.report()
    assert report.gears == ((8,),)
    assert report.dynamic["gears took what they may"] == 12


def test_a_gear_that_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call, which is compiled too, says how long one takes."""
    monkeypatch.setattr(HERE, "padding_of", lambda *_: pytest.fail("time is spent"))
    run = auto(scaled, seconds=1.0)
    run._first = 1.5
    follow(run, scaled, [4, 8] * 6)
    assert (run.report().gears, run.report().seconds) == ((), 0.0)


def test_no_waste_is_no_padding_but_gears() -> None:
    run = auto(scaled, waste=0)
    follow(run, scaled, [4, 8] * 5 + [7])
    assert (run.report().gears, run.report().padded) == (((4, 8),), 0)
    assert len(choose(dict.fromkeys(range(100, 116), 1), 8, 0.001, may_pad=True)) == 8


def test_failure_while_choosing_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("while choosing")

    monkeypatch.setattr(HERE, "choose", fail)
    run = auto(scaled)
    with pytest.warns(torchair.DegradedWarning, match="while choosing"):
        follow(run, scaled, [4, 8] * 6)


def test_dimensions_that_are_not_there() -> None:
    run = auto(scaled, dims={"x": 9})
    with pytest.warns(torchair.DegradedWarning, match="it has 2 dimensions, and dims names 9") as told:
        follow(run, scaled, [4] * 9)
    assert len(told) == 1
    assert run.report().dynamic == {"no tensor has a named dimension": 9}


def test_outputs_that_are_not_there() -> None:
    run = auto(scaled, pad={"x": 0.0}, crop={"a": 1})
    with pytest.warns(torchair.DegradedWarning, match="no output 'a' to crop") as told:
        follow(run, scaled, [4, 8] * 5 + [7])
    assert len(told) == 1
    assert (run.report().gears, run.report().padded) == (((4, 8),), 0)
