"""Which models may be padded: each op that lets padding into a result is found before a padded call is
served, whatever the data were until then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchair.inference import auto_gears
from torchair.inference._padding.captured_graph import Apart, padding_of
from torchair.inference._padding.output_crop import Unknown

HERE = sys.modules["torchair.inference._auto_buckets"]
F = nn.functional
SIZES = [4, 8] * 4 + [7, 7, 3, 7]
INF = float("inf")
LEAST, MOST = torch.finfo(torch.float32).min, torch.iinfo(torch.int64).max
torch.manual_seed(0)
OTHER = torch.rand(3, 1) + 1
WEIGHT, TABLE, SQUARE = torch.randn(5, 3), torch.randn(50, 6), torch.randn(6, 6)


@pytest.fixture(autouse=True)
def _calls_as_captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled: graphs run as Dynamo captured them."""
    monkeypatch.setattr(HERE, "get_npu_backend", lambda **_: lambda gm, _: gm.forward)
    torch.compiler.reset()
    with torch.no_grad():
        yield


def positive(n: int) -> torch.Tensor:
    return torch.rand(3, n) + 1


def negative(n: int) -> torch.Tensor:
    return -torch.rand(3, n) - 1


def ids(n: int) -> torch.Tensor:
    return torch.randint(1, 50, (3, n))


def causal(n: int) -> torch.Tensor:
    return torch.arange(n)[None] > torch.arange(n)[:, None]


def attended(x: torch.Tensor, **how: Any) -> torch.Tensor:
    heads = x[:, None, :, None] * torch.ones(2)
    return F.scaled_dot_product_attention(heads, heads, heads, **how)


def scores(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, None] * x[:, None, :]


def served(model: Callable[..., Any], pad: Any, before: Any, after: Any) -> Any:
    """What was padded; every result is eager's."""
    run = auto_gears(model, dims={"x": 1}, pad={"x": pad}, after=8, most=3)
    for at, n in enumerate(SIZES):
        x = (before if at < 10 else after)(n)
        torch.testing.assert_close(run(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-5)
    return run.report()


Case = tuple[str, Callable[[torch.Tensor], Any], Any]
"""Name, model and padding."""

SAFE: list[Case] = [
    ("pointwise", lambda x: (x.sin() + 1).exp() / 2, 0.0),
    ("pointwise with positions", lambda x: x + torch.arange(x.shape[1]), 0.0),
    ("batch mean", lambda x: x - x.mean(0), 0.0),
    ("sum of zeros", lambda x: x.sin().sum(1), 0.0),
    ("mean over all real ones", lambda x: (x * (x != 0)).sum(1) / (x != 0).sum(1), 0.0),
    ("sum of squares", lambda x: x.norm(dim=1), 0.0),
    ("largest of what is not below", lambda x: x.relu().amax(1), 0.0),
    ("largest, padded with the least", lambda x: (x.amax(1), x.argmax(1), x.max(1).values), LEAST),
    ("least, padded with infinity", lambda x: (x.amin(1), x.argmin(1)), INF),
    ("product of ones", lambda x: x.prod(1), 1.0),
    ("any", lambda x: (x > 0).any(1), 0.0),
    ("all of not", lambda x: (~(x > 0)).all(1), 0.0),
    ("log of a sum", lambda x: x.logsumexp(1), -INF),
    ("softmax of minus infinity", lambda x: x.softmax(1) * 2, -INF),
    ("scan", lambda x: (x.cumsum(1), x.cummax(1).values), 0.0),
    ("first", lambda x: (x[:, 0], x[:, :2]), 0.0),
    ("transposed", lambda x: x.mT @ WEIGHT.mT, 0.0),
    ("merged and divided", lambda x: (x.mT.reshape(-1, 3) @ WEIGHT.mT).view(x.shape[1], 5).mT, 0.0),
    ("contraction of zeros", lambda x: x @ x.mT, 0.0),
    ("layer norm", lambda x: F.layer_norm(x.mT, (3,)), 0.0),
    ("sorted across", lambda x: (x.sort(0).values, x.topk(2, 0).values, x.flip(0), x.roll(1, 0)), 0.0),
    ("joined across", lambda x: torch.cat([x, x.sin()], 0), 0.0),
    ("stacked", lambda x: torch.stack([x, x.sin()]), 0.0),
    ("parts", lambda x: x.mT.chunk(3, -1)[1], 0.0),
    ("causal attention", lambda x: attended(x, is_causal=True), 0.0),
    ("causal mask", lambda x: attended(x, attn_mask=~causal(x.shape[1])), 0.0),
    ("causal mask by hand", lambda x: scores(x).masked_fill(causal(x.shape[1]), -INF).softmax(-1), 0.0),
    ("mask of what is padded", lambda x: attended(x, attn_mask=(x != 0)[:, None, None]), 0.0),
    ("embedding", lambda x: F.embedding(x, TABLE) @ SQUARE, 0),
    ("embedding that is masked", lambda x: (F.embedding(x, TABLE) * (x != 0)[..., None]).sum(1), 0),
    ("rows of a buffer", lambda x: x[..., None] + TABLE[: x.shape[1]], 0.0),
    ("batch norm", lambda x: F.batch_norm(x.mT, torch.zeros(3), torch.ones(3)), 0.0),
    ("convolution of rows", lambda x: F.conv1d(x.mT[:, None], torch.ones(1, 1, 2)), 0.0),
]

LEAKING: list[Case] = [
    ("max", lambda x: x.max(1).values, 0.0),
    ("amax", lambda x: x.amax(1), 0.0),
    ("max of all", lambda x: x.max(), 0.0),
    ("argmax", lambda x: x.argmax(1), 0.0),
    ("min", lambda x: x.min(1).values, 0.0),
    ("argmin", lambda x: (-x).argmin(1), 0.0),
    ("topk", lambda x: x.topk(2, 1).values, 0.0),
    ("sort", lambda x: x.sort(1).values, 0.0),
    ("argsort", lambda x: x.argsort(1, descending=True)[:, :2], 0.0),
    ("kthvalue", lambda x: x.kthvalue(1, 1).values, 0.0),
    ("median", lambda x: x.median(1).values, 0.0),
    ("mode", lambda x: x.round().mode(1).values, 0.0),
    ("mean", lambda x: x.mean(1), 0.0),
    ("mean of all", lambda x: x.mean(), 0.0),
    ("std", lambda x: x.std(1), 0.0),
    ("var_mean", lambda x: torch.var_mean(x, 1), 0.0),
    ("logsumexp", lambda x: x.logsumexp(1), 0.0),
    ("softmax", lambda x: x.softmax(1), 0.0),
    ("log_softmax", lambda x: x.log_softmax(1), 0.0),
    ("product", lambda x: x.prod(1), 0.0),
    ("all", lambda x: (x > -9).all(1), -10.0),
    ("any equal", lambda x: (x == 0).any(1), 0.0),
    ("any below", lambda x: (x < 0.5).any(1), 0.0),
    ("all equal", lambda x: (x == 3.7).all(1), 0.0),
    ("sum after a shift", lambda x: (x + 1).sum(1), 0.0),
    ("norm of one", lambda x: x.norm(dim=1), 1.0),
    ("least norm", lambda x: x.norm(-INF, dim=1), 0.0),
    ("flip", lambda x: x.flip(1), 0.0),
    ("roll", lambda x: x.roll(1, 1), 0.0),
    ("roll of all", lambda x: x.roll(1), 0.0),
    ("last", lambda x: x[:, -1], 0.0),
    ("last by number", lambda x: x[:, x.shape[1] - 1], 0.0),
    ("last two", lambda x: x[:, -2:], 0.0),
    ("size as a number", lambda x: x / x.shape[1], 0.0),
    ("size as a tensor", lambda x: x * torch.full((), x.shape[1]), 0.0),
    ("positions from the end", lambda x: x * torch.arange(x.shape[1]).flip(0), 0.0),
    ("layer norm", lambda x: F.layer_norm(x, (x.shape[1],)), 0.0),
    ("instance norm", lambda x: F.instance_norm(x[:, None]), 0.0),
    ("group norm", lambda x: F.group_norm(x.mT.reshape(1, 3, -1), 3).squeeze(0).mT, 0.0),
    ("batch statistics", lambda x: F.batch_norm(x.mT, None, None, training=True), 0.0),
    ("attention", lambda x: attended(x), 0.0),
    ("attention by hand", lambda x: scores(x).softmax(-1), 0.0),
    ("mask that may hide all", lambda x: (scores(x) + (x == 0)[:, None] * -1e9).softmax(-1), 0.0),
    ("reversed cumsum", lambda x: x.flip(1).cumsum(1).flip(1), 0.0),
    ("unique", lambda x: x.round().unique().sum(), 0.0),
    ("positive ones", lambda x: x[x < 0.5].sum(), 0.0),
    ("fft", lambda x: torch.fft.fft(x).abs().amax(1), 0.0),
    ("trace", lambda x: (x[:, :, None] * x[:, None, :] + 1)[0].trace(), 0.0),
    ("below a number that comes late", lambda x: (torch.arange(x.shape[1]) < 1000).sum() + x[:, 0], 0.0),
    ("histogram", lambda x: x.histc(4, -5.0, 5.0), 0.0),
    ("bincount", lambda x: x.long().abs().flatten().bincount(minlength=9)[:9], 0.0),
    ("largest after an op without a rule", lambda x: (x.unfold(1, 1, 1)[..., 0]).amax(1), 0.0),
    ("distances", lambda x: torch.cdist(x.mT, x.mT).sum(), 0.0),
    ("least in a range", lambda x: ((x - 1.7) ** 2).amax(1), 2.3),
    ("least of a sine", lambda x: x.sin().amax(1), -1.2),
    ("number between samples", lambda x: (x * ((OTHER - 3).abs() < 0.4)).sum(1) + x[:, 0], 1.0),
    ("number of a remainder", lambda x: (x * ((OTHER % 7 - 3).abs() < 0.4)).sum(1) + x[:, 0], 1.0),
    ("one position", lambda x: (x[:, :, None] * (torch.arange(x.shape[1]) == 99)).sum(1), 1.0),
    ("logarithm of what may be 0", lambda x: ((x + OTHER).log() * (x != 0)).sum(1), 0.0),
    ("quotient of what may be 0", lambda x: (1 / (x + OTHER) * (x != 0)).sum(1), 0.0),
    ("contraction of what may be NaN", lambda x: (x != 0).float() @ (x + OTHER).log().mT, 0.0),
]


def judged(model: Callable[..., Any], pad: Any, come: Any) -> str | None:
    """Why calls would not be padded."""
    x = come(11)
    apart = Apart(model, lambda gm, _: gm.forward, dynamic=True, keeps=True)
    outputs, seen = apart.watched((x,), {})
    try:
        padding = padding_of(seen, outputs, {"x": (x, 1)}, {"x": pad}, crop=True, check=True)
    except Unknown as why:
        return str(why)
    padded = torch.cat([x, x.new_full((3, 3), pad)], 1)
    return padding.why_not(seen[0].args, lambda _, given: padded_to(given, padded), 11, 14, True)[0]


def test_other_arguments_are_tried_too() -> None:
    """The padding is read where another argument is positive, and it was not in the calls until then."""

    def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(y > 0, F.avg_pool1d(x, 3, 1, padding=1), x)

    x, y = positive(11), -torch.ones(())
    apart = Apart(gated, lambda gm, _: gm.forward, dynamic=True, keeps=True)
    outputs, seen = apart.watched((x, y), {})
    padding = padding_of(seen, outputs, {"x": (x, 1)}, {"x": 1.0}, crop=True, check=True, others=[y])
    padded = torch.cat([x, x.new_ones(3, 3)], 1)
    assert padding.undecided
    why, _ = padding.why_not(seen[0].args, lambda _, given: padded_to(given, padded), 11, 14, True)
    assert why == "output 0 would have other numbers"


def padded_to(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, padded[:, x.shape[1] :]], 1)


def quick(cases: list[Case]) -> list[Any]:
    """Each third in every run."""
    return [
        pytest.param(case, id=case[0], marks=[pytest.mark.full] if at % 3 else [])
        for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", quick(SAFE))
def test_what_may_be_padded(case: Case) -> None:
    _, model, pad = case
    assert judged(model, pad, ids if isinstance(pad, int) else positive) is None


@pytest.mark.parametrize("case", quick(LEAKING))
def test_what_must_not_be_padded(case: Case) -> None:
    _, model, pad = case
    assert judged(model, pad, positive) is not None


@pytest.mark.full
@pytest.mark.parametrize("case", SAFE, ids=[case[0] for case in SAFE])
def test_padding_serves_models_that_allow_it(case: Case) -> None:
    _, model, pad = case
    come = ids if isinstance(pad, int) else positive
    report = served(model, pad, come, ids if come is ids else negative)
    assert report.why_not_padded is None
    assert report.padded >= 2, str(report)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("case", LEAKING, ids=[case[0] for case in LEAKING])
def test_padding_refuses_models_that_see_it(case: Case) -> None:
    """Nor where all data until then were of one sign."""
    _, model, pad = case
    report = served(model, pad, positive, negative)
    assert report.padded == 0, str(report)
    assert report.why_not_padded


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("case", LEAKING, ids=[case[0] for case in LEAKING])
def test_not_padded_from_negative_to_positive(case: Case) -> None:
    _, model, pad = case
    assert served(model, pad, negative, positive).padded == 0


class Settings:
    """Numbers that models read."""

    shift = 0.5
    count = 2


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
@pytest.mark.parametrize("name", ["shift", "count"])
def test_numbers_that_a_model_reads_may_change(name: str) -> None:
    """Dynamo makes them inputs: the proof for one number is none for another."""
    settings = Settings()
    neutral = getattr(settings, name)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return (x + (getattr(settings, name) - neutral)).sum(1)

    run = auto_gears(shifted, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    for at, n in enumerate([4, 8] * 4 + [7] * 9):
        setattr(settings, name, neutral + max(0, at - 10))
        follow(run, shifted, positive(n))
    assert run.report().padded == 2


def follow(run: Callable[..., Any], model: Callable[..., Any], *args: torch.Tensor) -> None:
    torch.testing.assert_close(run(*args), model(*args), equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scales", [[2.0, 3.0], [0.0, -0.0]])
def test_each_number_that_a_model_reads_is_checked_once(scales: list[float]) -> None:
    settings = Settings()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * settings.shift

    run = auto_gears(scaled, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    for n in [4, 8] * 4 + [7, 7]:
        follow(run, scaled, positive(n))
    for scale in scales:
        settings.shift = scale
        for _ in range(3):
            follow(run, scaled, positive(7))
    report = run.report()
    assert (report.padded, report.dynamic["to compare with"]) == (4, 3)


@pytest.mark.parametrize("odd", [INF, -INF, float("nan")])
def test_calls_with_infinite_inputs_are_not_padded(odd: float) -> None:
    """0 * inf is NaN: padding of zeros is neutral for finite numbers."""

    def weighted(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (x * by).sum(1)

    run = auto_gears(weighted, dims={"x": 1}, pad={"x": 0.0}, after=8, most=3)
    by = torch.ones(3, 1)
    for n in [4, 8] * 4 + [7, 7]:
        follow(run, weighted, positive(n), by)
    follow(run, weighted, positive(7), by * odd)
    follow(run, weighted, positive(7).fill_(odd), by)
    report = run.report()
    assert (report.padded, report.dynamic["infinite or NaN inputs"]) == (1, 2)


def test_the_padding_value_may_be_among_the_inputs() -> None:
    run = auto_gears(lambda x: x.amax(1), dims={"x": 1}, pad={"x": -INF}, after=8, most=3)
    for n in [4, 8] * 4 + [7, 7]:
        x = positive(n)
        x[0] = -INF
        torch.testing.assert_close(run(x), x.amax(1))
    assert run.report().padded == 1
