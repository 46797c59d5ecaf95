"""Gears chosen from the sizes that come: results are eager's, whatever comes and however it is served."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.support.compile import make_config, taken_programs
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.inference import auto_gears
from torchair.inference._padding.captured_graph import Apart, Unsuitable, padding_of
from torchair.inference._padding.output_crop import Crops, Unknown, declared_crops

EAGER = {"engine_config.codegen": "eager"}
IDS = {"dims": {"input_ids": 1, "attention_mask": 1}, "pad": {"input_ids": 0, "attention_mask": 0}}


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return taken_programs(monkeypatch)


def auto(model: Callable[..., Any], **how: Any) -> Any:
    return auto_gears(model, **{"config": make_config(EAGER), "after": 8, "most": 3, **how})


# Crops.


def crops_of(model: Callable[..., Any], x: torch.Tensor) -> Crops:
    apart = Apart(model, lambda gm, _: gm.forward, dynamic=True, keeps=True)
    outputs, seen = apart.watched((x,), {})
    return padding_of(seen, outputs, {"x": (x, 1)}, {"x": 0.0}, crop=True, check=False).crops


def test_crops_come_from_symbols_not_from_numbers() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        return y, x.sum(1), x.new_ones(7, 7), x.mT @ x, y

    assert crops_of(f, torch.randn(3, 7)) == Crops(((1,), (), (), (0, 1), (1,)))
    torch.compiler.reset()  # Dynamo remembers sizes that differed
    with pytest.raises(Unsuitable):
        crops_of(f, torch.randn(7, 7))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x[:, 1:], "- 1 elements"),
        (lambda x: x.flatten(), "elements, not the size"),
        (lambda x: (x.relu(), x.shape[1]), "a number that depends on the size"),
        (lambda x: x.add_(1), "writes its arguments"),
        (lambda x: x[:, : int(x.sum().item())], "."),
    ],
)
def test_what_cannot_be_cropped(function: Any, why: str) -> None:
    with pytest.raises(Unknown, match=why):
        crops_of(function, torch.randn(3, 7))


def test_declared_crops_cut_outputs() -> None:
    x = torch.randn(2, 9, 3)
    crops = declared_crops({"logits": x, "other": x}, {"logits": -2})
    cut = crops.cut({"logits": x, "other": x}, 4)
    assert (cut["logits"].shape, cut["other"].shape) == ((2, 4, 3), (2, 9, 3))
    assert cut["logits"].is_contiguous()
    with pytest.raises(Unknown, match="no output 'hidden'"):
        declared_crops({"logits": x}, {"hidden": 1})
    with pytest.raises(Unknown, match="3 dimensions"):
        declared_crops(x, {0: 5})


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


@pytest.mark.full
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


@pytest.mark.full
def test_inputs_of_the_caller_are_not_marked() -> None:
    run = auto(scaled, dims={"x": 1})
    x = torch.randn(3, 4)
    for _ in range(12):
        run(x)
        follow(run, scaled, [8])
    assert run.report().exact
    assert not hasattr(x, "dim_gears")


@pytest.mark.full
def test_auto_buckets_are_right_in_many_threads() -> None:
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


@pytest.mark.parametrize("gears", [(4, 8), slow((8,))])
def test_gears_outlive_the_caches_of_torch(gears: tuple[int, ...], taken: list[Any]) -> None:
    run = auto(scaled, dims={"x": 1})
    follow(run, scaled, list(gears) * 8)
    assert len(taken) == (2 if len(gears) > 1 else 0), "a lone gear is compiled for its size"
    torch.compiler.reset()
    follow(run, scaled, list(gears) * 5)
    assert len(taken) == (4 if len(gears) > 1 else 0)
    assert run.report().gears == (gears,)


def test_auto_buckets_warns_of_graph_breaks() -> None:
    def cut(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    run = auto(cut, dims={"x": 1})
    with pytest.warns(torchair.DegradedWarning, match="the first of 2 graphs only"):
        follow(run, cut, [4, 8] * 5)
    assert run.report().exact == 3


def test_a_graph_that_torch_begins_again_is_one(taken: list[Any]) -> None:
    def dropped(x: torch.Tensor, share: float) -> torch.Tensor:
        return nn.functional.dropout(x, share, training=False) * x.new_full((1,), share)

    run = auto(dropped, dims={"x": 1})
    follow(run, dropped, [4, 8] * 6, share=0.25)
    assert (run.report().exact, len(taken)) == (5, 2)


# Models that others wrote.


def tiny(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    kind = {"Bert": "BertModel", "Llama": "LlamaForCausalLM"}[name]
    return getattr(transformers, kind)(config).eval()


@pytest.mark.full
@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_auto_buckets_pad_transformers(name: str) -> None:
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
