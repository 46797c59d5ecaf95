"""Gears chosen from the sizes that come: results are eager's, whatever comes and however it is served."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.watch import config_of
from tests.capture.simulated import SimulatedDevice
from torchair.core.errors import BadGears
from torchair.inference import auto_gears
from torchair.inference._crops import Crops, Unknown, declared_crops, symbolic_crops
from torchair.inference._gear_choice import choose, cost, serving

EAGER = {"engine_config.codegen": "eager"}
IDS = {"dims": {"input_ids": 1, "attention_mask": 1}, "pad": {"input_ids": 0, "attention_mask": 0}}


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    torch.compiler.reset()
    with torch.no_grad():
        yield


def auto(model: Callable[..., Any], **how: Any) -> Any:
    return auto_gears(model, **{"config": config_of(EAGER), "after": 8, "most": 3, **how})


# The choice.


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


# Crops.


def test_crops_come_from_symbols_not_from_numbers() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.relu(), x.sum(1), x.new_ones(7, 7), x.mT @ x

    x = torch.randn(7, 7)
    assert symbolic_crops(f, {"x": x}, {}, {"x": 1}) == Crops(((1,), (), (), (0, 1)))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x[:, 1:], "- 1 elements"),
        (lambda x: x.flatten(), "elements, not the size"),
        (lambda x: (x.relu(), x.shape[1]), "a number that depends on the size"),
        (lambda x: x.add_(1), "writes its inputs"),
        (lambda x: x[:, : int(x.sum().item())], "."),
    ],
)
def test_what_cannot_be_cropped(function: Any, why: str) -> None:
    with pytest.raises(Unknown, match=why):
        symbolic_crops(function, {"x": torch.randn(3, 7)}, {}, {"x": 1})


def test_declared_crops() -> None:
    x = torch.randn(2, 9, 3)
    crops = declared_crops({"logits": x, "other": x}, {"logits": -2})
    cut = crops.cut({"logits": x, "other": x}, 4)
    assert (cut["logits"].shape, cut["other"].shape) == ((2, 4, 3), (2, 9, 3))
    assert cut["logits"].is_contiguous()
    with pytest.raises(Unknown, match="no output 'hidden'"):
        declared_crops({"logits": x}, {"hidden": 1})
    with pytest.raises(Unknown, match="3 dimensions"):
        declared_crops(x, {0: 5})


# Mistakes.


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"dims": {}}, "names arguments"),
        ({"dims": [1]}, "names arguments"),
        ({"dims": {"y": 1}}, "no argument 'y'"),
        ({"dims": {"x": "1"}}, "is an int"),
        ({"dims": {"x": 1}, "pad": {"z": 0}}, "which dims does not"),
        ({"dims": {"x": 1}, "most": 0}, "1 to 100 gears"),
        ({"dims": {"x": 1}, "waste": -1}, "0 and more"),
        ({"dims": {"x": 1}, "after": None}, "0 and more"),
        ({"dims": {"x": 1}, "seconds": "1"}, "0 and more"),
        ({"dims": {"x": 1}, "config": config_of({}, "reduce-overhead")}, "graph mode"),
    ],
)
def test_mistakes_are_told_at_once(how: dict[str, Any], text: str) -> None:
    with pytest.raises(BadGears, match=text):
        auto_gears(lambda x: x, **how)


# Serving.


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x.sin() * by


def follow(run: Any, model: Callable[..., Any], sizes: list[int], **kwargs: Any) -> None:
    for n in sizes:
        x = torch.randn(3, n)
        torch.testing.assert_close(run(x, **kwargs), model(x, **kwargs))


def test_sizes_are_counted_then_served_by_gears() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0})
    follow(run, scaled, [4, 8] * 4)
    report = run.report()
    assert (report.gears, report.exact, report.choices) == (((4, 8),), 1, 1)
    follow(run, scaled, [8, 4, 8, 3, 3, 7, 7])
    report = run.report()
    assert report.exact == 4
    assert report.padded == 2, "the first of each gear is compared"
    assert report.dynamic == {"sizes are counted": 7, "to compare with": 2}
    assert 0 < report.padded_share < 0.2
    assert report.sizes == {4: 5, 8: 6, 3: 2, 7: 2}
    assert report.calls == 15
    assert report.seconds > 0
    assert "[4, 8]" in str(report)


def test_without_values_nothing_is_padded() -> None:
    run = auto(scaled, dims={"x": 1})
    follow(run, scaled, [4, 8] * 4 + [3, 7, 8, 4])
    report = run.report()
    assert (report.padded, report.exact) == (0, 3)
    assert report.why_not_padded == "no values to pad with"


def test_sizes_without_symbols() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, waste=9.0)
    follow(run, scaled, [0, 1, 4, 8, 0, 1, 4, 8, 0, 1, 1, 4])
    report = run.report()
    assert report.gears
    assert report.dynamic["no gear fits"] == 1, "nothing is made of nothing"
    assert report.padded >= 1


def test_a_padding_that_changes_results_is_found() -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)

    run = auto(mean, dims={"x": 1}, pad={"x": 0.0})
    follow(run, mean, [4, 8] * 4)
    with pytest.warns(torchair.DegradedWarning, match="other numbers"):
        follow(run, mean, [7])
    follow(run, mean, [7, 3, 8, 4])
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
    run = auto(model, dims={"x": 1}, pad={"x": 0.0}, crop={0: 1})
    for n in [4, 8] * 4:
        run(torch.ones(2, n))
    with pytest.warns(torchair.DegradedWarning, match="writes its arguments or its state"):
        run(torch.ones(2, 7))
    for n in (7, 3, 8):
        run(torch.ones(2, n))
    assert model.calls.item() == 12, "each call is one call"
    assert run.report().padded == 0


def test_outputs_of_other_sizes_are_not_padded() -> None:
    run = auto(lambda x: x[:, 1:] + 0, dims={"x": 1}, pad={"x": 0.0})
    with pytest.warns(torchair.DegradedWarning, match="pads no calls"):
        follow(run, lambda x: x[:, 1:], [4, 8] * 4 + [7, 8])
    assert run.report().exact >= 1


def test_outputs_may_stay_padded() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, crop=False)
    follow(run, scaled, [4, 8] * 4)
    assert run(torch.ones(3, 7)).shape == (3, 8)


def test_budgets() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, seconds=0)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ()
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, memory_bytes=2 * 2 * 3 * 4 * 5)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ((4,),), "eight are too much"
    assert 0 < run.report().bytes <= 2 * 2 * 3 * 4 * 5
    run = auto(scaled, dims={"x": 1}, most=1)
    follow(run, scaled, [4, 8] * 6)
    assert run.report().gears == ((8,),)


def test_other_sizes_later_are_chosen_again_and_not_for_ever() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, check=False)
    follow(run, scaled, [4] * 8 + [30] * 20)
    assert run.report().gears == ((30,),)
    for n in range(40, 200, 10):
        follow(run, scaled, [n] * 9)
    assert run.report().choices == 4


def test_other_arguments_have_gears_of_their_own() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0}, most=4)
    for by in (2.0, 3.0):
        follow(run, scaled, [4, 8] * 5, by=by)
    assert len(run.report().gears) == 2
    for by in range(10):
        follow(run, scaled, [4], by=float(by))
    assert run.report().dynamic["other arguments differ from call to call"] > 0


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


def test_errors_of_the_model_are_its_own() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 5:
            raise ValueError("not five")
        return x * 2

    run = auto(picky, dims={"x": 1}, pad={"x": 0.0})
    with pytest.raises(Exception, match="not five"):
        run(torch.ones(5, 4))
    follow(run, picky, [4, 8] * 6)
    assert run.report().exact


def test_a_gear_that_fails_is_told_and_the_call_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(sys.modules["torchair.inference._auto_gears"], "set_dim_gears", fail)
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0})
    with pytest.warns(torchair.DegradedWarning, match="on purpose"):
        follow(run, scaled, [4, 8] * 5)
    assert run.report().gears == ()


def test_inputs_of_the_caller_are_not_marked() -> None:
    run = auto(scaled, dims={"x": 1})
    x = torch.randn(3, 4)
    for _ in range(12):
        run(x)
        follow(run, scaled, [8])
    assert run.report().exact
    assert not hasattr(x, "dim_gears")


def test_threads() -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0})
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(3, rng.choice([4, 7, 8]))
                if not torch.allclose(run(x), scaled(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert run.report().calls >= 90


def test_gears_are_recorded(row: SimulatedDevice) -> None:
    run = auto(scaled, dims={"x": 1}, pad={"x": 0.0})
    follow(run, scaled, [4, 8] * 4 + [8, 4, 7, 7] * 4)
    before = row.replays
    follow(run, scaled, [8, 4, 7])
    assert row.replays == before + 3


# Models that others wrote.


def tiny(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    kind = {"Bert": "BertModel", "Llama": "LlamaForCausalLM"}[name]
    return getattr(transformers, kind)(config).eval()


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_transformers(name: str) -> None:
    model = tiny(name)
    run = auto(model, **IDS)
    plain = {"use_cache": False} if name == "Llama" else {}
    for at, n in enumerate([5, 8, 12] * 3 + [12, 8, 7, 7, 11, 11]):
        ids, mask = torch.randint(0, 99, (2, n)), torch.ones(2, n, dtype=torch.long)
        mask[0, -2:] = 0 if name == "Bert" else 1
        given: Any = {"input_ids": ids, "attention_mask": mask} if at % 2 else {"attention_mask": mask}
        args = () if at % 2 else (ids,)
        mine, theirs = run(*args, **given, **plain), model(*args, **given, **plain)
        assert type(mine) is type(theirs)
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-5)
    report = run.report()
    assert report.why_not_padded is None
    assert report.padded >= 2, str(report)
    assert report.exact >= 2
