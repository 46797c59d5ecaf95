"""Random ops: equal to eager from the same seed where ops run one by one; elsewhere reproducible, with the
right distribution; computed from seed and offset alone when a graph is fed real offsets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchair
from tests.convert.harness import OLD, converted
from tests.support.compile import compile_fn
from torchair import ge
from torchair.convert.base.registry import unregister
from torchair.core.torch_private.compilers.inductor import inductor_config, lowering_table
from torchair.engine.interpret import interpret
from torchair.engine.kernels.random import philox, words_of
from torchair.engine.lower import lower
from torchair.ge.builder.random_state import OFFSETS, SEED, UNPACK, random_state
from torchair.ge.files.verify import verify
from torchair.ge.graph import ArgumentFeed, Graph, RandomFeed, TensorResult
from torchair.ge.host import Host

Fn = Callable[..., Any]
CPU = torch.device("cpu")
SHAPE = (5, 7)

# The function, and the IR op that draws its numbers. These give eager's own numbers.
EQUAL: dict[str, tuple[Fn, str]] = {
    "rand": (lambda x: torch.rand(x.shape), "StatelessRandomUniformV2"),
    "rand_bf16": (lambda x: torch.rand(x.shape, dtype=torch.bfloat16), "StatelessRandomUniformV2"),
    "randn": (lambda x: torch.randn(x.shape[0], 3), "StatelessRandomNormalV2"),
    "rand_like": (lambda x: torch.rand_like(x) + x, "StatelessRandomUniformV2"),
    "randn_like": (lambda x: torch.randn_like(x, dtype=torch.float64), "StatelessRandomNormalV2"),
    "uniform": (lambda x: x.clone().uniform_(2, 5), "StatelessRandomUniformV2"),
    "normal_": (lambda x: x.clone().normal_(2, 5), "StatelessRandomNormalV2"),
    "normal_tensor_float": (lambda x: torch.normal(x, 2.0), "StatelessRandomNormalV2"),
    "normal_float_tensor": (lambda x: torch.normal(2.0, x), "StatelessRandomNormalV2"),
    "normal_tensor_tensor": (lambda x: torch.normal(x, x), "StatelessRandomNormalV2"),
    "normal_float_float": (lambda x: torch.normal(1.0, 2.0, (20, 2)), "StatelessRandomNormalV2"),
    "randint": (lambda x: torch.randint(10, (20,)), "StatelessRandomUniformIntV2"),
    "randint_low": (lambda x: torch.randint(-5, 10, (x.shape[0],)), "StatelessRandomUniformIntV2"),
    "randint_like": (lambda x: torch.randint_like(x, 9), "StatelessRandomUniformIntV2"),
    "randint_like_low": (lambda x: torch.randint_like(x, 3, 9), "StatelessRandomUniformIntV2"),
    "random": (lambda x: x.clone().random_(), "StatelessRandomUniformIntV2"),
    "random_bool": (lambda x: (x > 0).random_(), "StatelessRandomUniformIntV2"),
    "random_to": (lambda x: x.clone().random_(9), "StatelessRandomUniformIntV2"),
    "randperm": (lambda x: torch.randperm(20, dtype=torch.int32), "StatelessRandperm"),
    "multinomial": (lambda x: torch.multinomial(x, 3), "MultinomialWithReplacement"),
    "multinomial_again": (lambda x: torch.multinomial(x, 13, True), "MultinomialWithReplacement"),
    "poisson": (lambda x: torch.poisson(x * 10), "StatelessRandomPoisson"),
    "bernoulli": (lambda x: torch.bernoulli(x), "StatelessBernoulli"),
    "bernoulli_p": (lambda x: torch.bernoulli(x, 0.3), "StatelessBernoulli"),
    "bernoulli_tensor": (lambda x: x.clone().bernoulli_(x[0]), "StatelessBernoulli"),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.3, True), "StatelessBernoulli"),
    "geometric": (lambda x: x.clone().geometric_(0.3), "StatelessRandomUniformV2"),
    "cauchy": (lambda x: x.clone().cauchy_(1, 2), "StatelessRandomUniformV2"),
}
# These have numbers of their own: (function, mean, tolerance) over many elements.
ALIKE: dict[str, tuple[Fn, float, float]] = {
    "exponential": (lambda x: x.clone().exponential_(2.0), 0.5, 0.02),
    "log_normal": (lambda x: x.clone().log_normal_(0.1, 0.2), 1.1275, 0.02),
    "random_int32": (lambda x: x.to(torch.int32).random_().double() / 2**31, 0.5, 0.02),
}
BY_PARTS: dict[str, Fn] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_dropout": lambda x: F.dropout1d(x[None], 0.3),
}
CODEGENS = ("reference", "eager", "inductor")


def weights() -> torch.Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def backend(codegen: str) -> Any:
    config = torchair.CompilerConfig()
    config.engine_config.codegen = codegen
    return torchair.get_npu_backend(compiler_config=config)


def from_seed(fn: Fn, *args: Any) -> list[Any]:
    torch.manual_seed(3)
    return [*listed(fn(*args)), *listed(fn(*args))]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_the_numbers_are_eagers(name: str, dynamic: bool) -> None:
    fn, op = EQUAL[name]
    x = weights()
    graph, report, gm, fake_mode = converted(fn, (x,), dynamic)
    verify(graph)
    assert not report.fallbacks
    assert op in {made.type for made in graph.ops}
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
    lowered = lower(graph, placeholders, fake_mode, CPU, lowering_table("eager"))
    expected = from_seed(fn, x)
    for run in (lambda x: interpret(graph, [x], CPU), lowered):
        torch.testing.assert_close(from_seed(run, x), expected)


@pytest.mark.parametrize("name", ALIKE)
def test_transforms_have_the_distribution(name: str) -> None:
    fn, mean, tolerance = ALIKE[name]
    graph, report, *_ = converted(fn, (torch.empty(40_000),))
    assert not report.fallbacks
    torch.manual_seed(1)
    (made,) = interpret(graph, [torch.empty(40_000)], CPU)
    assert made.double().mean().item() == pytest.approx(mean, abs=tolerance)
    eager = fn(torch.empty(40_000)).double().mean().item()
    assert made.double().mean().item() == pytest.approx(eager, abs=0.03)


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("name", ["rand", "randint_low", "bernoulli", "multinomial", "geometric"])
def test_every_code_generator_follows_the_seed(name: str, codegen: str) -> None:
    fn, _ = EQUAL[name]
    x = weights()
    run = compile_fn(fn, dynamic=True, codegen=codegen, fullgraph=True, reset=True)
    run(x)
    first, again = from_seed(run, x), from_seed(run, x)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0], first[1])
    if codegen != "inductor":
        torch.testing.assert_close(first, from_seed(fn, x))


@pytest.mark.parametrize("codegen", ["reference", "eager"])
@pytest.mark.parametrize("name", BY_PARTS)
def test_dropout_gives_eagers_mask(name: str, codegen: str) -> None:
    x = weights()
    run = compile_fn(BY_PARTS[name], dynamic=False, codegen=codegen, fullgraph=True, reset=True)
    torch.testing.assert_close(from_seed(run, x), from_seed(BY_PARTS[name], x))


def test_inductor_draws_eagers_numbers_when_asked_to() -> None:
    x = weights()
    with inductor_config.patch(fallback_random=True):
        run = compile_fn(
            lambda x: F.dropout(x, 0.3) + torch.rand_like(x),
            dynamic=False,
            codegen="inductor",
            fullgraph=True,
            reset=True,
        )
        got = from_seed(run, x)
    torch.testing.assert_close(got, from_seed(lambda x: F.dropout(x, 0.3) + torch.rand_like(x), x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("codegen", CODEGENS)
def test_backward_sees_the_mask_of_forward(codegen: str, dynamic: bool) -> None:
    x = (weights() + 0.1).requires_grad_()
    run = compile_fn(
        lambda x: F.dropout(x, 0.4), dynamic=dynamic, codegen=codegen, fullgraph=True, reset=True
    )
    run(x)
    y = run(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert 0 < (y == 0).sum() < y.numel()
    torch.testing.assert_close(grad * x.detach(), y.detach())


@pytest.mark.parametrize("training", [False, True])
def test_rrelu_draws_slopes_in_range(training: bool) -> None:
    x = weights() - 0.5
    run = compile_fn(lambda x: F.rrelu(x, 0.1, 0.3, training), dynamic=False, fullgraph=True, reset=True)
    slope = (run(x) / x)[x < 0]
    assert torch.equal(run(x)[x >= 0], x[x >= 0])
    assert slope.ge(0.1 - 1e-6).all()
    assert slope.le(0.3 + 1e-6).all()
    assert (slope.std() > 0.01) == training


def test_dropout_that_keeps_or_drops_all() -> None:
    x = weights()
    for p, train, expected in ((0.0, True, x), (0.3, False, x), (1.0, True, torch.zeros_like(x))):
        graph, *_ = converted(functools.partial(torch.native_dropout, p=p, train=train), (x,))
        torch.testing.assert_close(interpret(graph, [x], CPU)[0], expected)
        assert OFFSETS not in graph.by_name


def test_the_state_of_a_graph_is_one_seed_and_a_vector_of_offsets() -> None:
    graph, *_ = converted(lambda x: (torch.rand(3), torch.randn(3), x.clone().exponential_()), (weights(),))
    assert graph.by_name[SEED].outputs[0].meta.value == torch.initial_seed()
    assert graph.by_name[UNPACK].attrs["num"].value == 3
    assert graph.feeds[OFFSETS] == RandomFeed(3)
    assert graph.by_name[OFFSETS].outputs[0].desc.device == "CPU"
    read = [slot.tensor for op in graph.ops for slot in op.slots]
    assert [read.count(offset) for offset in graph.by_name[UNPACK].outputs] == [1, 1, 1]


def test_declined_conversion_leaves_no_random_state() -> None:
    target = torch.ops.aten.sin.default

    @torchair.register_fx_node_ge_converter(target)
    def convert(x: Any) -> Any:
        random_state(CPU)
        raise NotImplementedError("not after all")

    try:
        graph, *_ = converted(lambda x: x.sin(), (weights(),))
    finally:
        unregister(target)
    verify(graph)
    assert OFFSETS not in graph.feeds
    torch.testing.assert_close(interpret(graph, [weights()], CPU), [weights().sin()])


@pytest.mark.skipif(OLD, reason="this torch cannot trace generators")
def test_a_generator_object_is_carried_through() -> None:
    generator = torch.Generator()
    fn = lambda x: torch.rand(x.shape, generator=generator)  # noqa: E731
    graph, report, *_ = converted(fn, (weights(),))
    assert [reason.op for reason in report.fallbacks] == ["aten.rand.generator"]
    assert "generator object" in report.fallbacks[0].why
    generator.manual_seed(7)
    (got,) = interpret(graph, [weights()], CPU)
    generator.manual_seed(7)
    assert torch.equal(got, fn(weights()))


def fed(build: Callable[[Any, Any], Any], count: int = 1) -> Callable[..., list[Any]]:
    """A graph whose offset is an argument: seed and offset alone decide."""
    graph = Graph("fed")
    with graph:
        seed, offset = random_state(CPU)
        made = listed(build(seed, offset))
        ge.NetOutput(made)
    graph.feeds[OFFSETS] = ArgumentFeed(0)
    graph.results = [TensorResult(tensor) for tensor in made]
    return lambda offset: interpret(graph, [torch.tensor([offset])], CPU)


INT32, INT64, UINT64 = ge.DataType.DT_INT32, ge.DataType.DT_INT64, ge.DataType.DT_UINT64


def key_and_counter(seed: Any, offset: Any) -> tuple[Any, Any, Any]:
    key = ge.Cast(ge.Reshape(seed, [1]), dst_type=UINT64)
    counter = ge.Cast(ge.Pack([ge.Const(0, dtype=INT64), offset], axis=0, N=2), dst_type=UINT64)
    return key, counter, ge.Const(1, dtype=INT32)


def sizes(*numbers: int) -> Any:
    return ge.Const(list(numbers), dtype=INT64)


# IR op with real offsets, the mean of its numbers, their deviation.
STATELESS: dict[str, tuple[Callable[[Any, Any], Any], float, float]] = {
    "uniform": (lambda s, o: ge.StatelessRandomUniformV2(sizes(9999), *key_and_counter(s, o)), 0.5, 0.2887),
    "uniform_f64": (
        lambda s, o: ge.StatelessRandomUniformV2(sizes(9999), *key_and_counter(s, o), dtype=11), 0.5, 0.2887
    ),
    "uniform_f16": (
        lambda s, o: ge.StatelessRandomUniformV2(sizes(9999), *key_and_counter(s, o), dtype=1), 0.5, 0.2887
    ),
    "normal": (lambda s, o: ge.StatelessRandomNormalV2(sizes(9999), *key_and_counter(s, o)), 0.0, 1.0),
    "int": (
        lambda s, o: ge.StatelessRandomUniformIntV2(
            sizes(9999), *key_and_counter(s, o), ge.Const(-3, dtype=INT64), ge.Const(4, dtype=INT64)
        ),
        0.0,
        2.0,
    ),
    "bernoulli": (lambda s, o: ge.StatelessBernoulli(sizes(9999), ge.Const(0.3), s, o), 0.3, 0.458),
    "permutation": (lambda s, o: ge.StatelessRandperm(ge.Const(9999, dtype=INT64), s, o), 4999.0, 2886.5),
    "multinomial": (
        lambda s, o: ge.MultinomialWithReplacement(
            ge.Const([1.0, 0.0, 3.0], dtype=0), s, o, numsamples=9999, replacement=True
        ),
        1.5,
        0.866,
    ),
    "poisson": (
        lambda s, o: ge.StatelessRandomPoisson(
            sizes(9999), ge.Pack([s, o], axis=0, N=2), ge.Const([4.0], dtype=0), dtype=0
        ),
        4.0,
        2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATELESS)
def test_numbers_of_seed_and_offset_alone(name: str) -> None:
    build, mean, deviation = STATELESS[name]
    run = fed(build)
    before = torch.get_rng_state()
    (first,), (again,), (other,) = run(0), run(0), run(12)
    assert torch.equal(torch.get_rng_state(), before), "the generator was used"
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.double().mean().item() == pytest.approx(mean, abs=0.05 * max(1.0, deviation))
    assert first.double().std().item() == pytest.approx(deviation, rel=0.05)


def test_samples_without_replacement_differ() -> None:
    rows = ge.Const
    run = fed(
        lambda s, o: ge.MultinomialWithReplacement(
            rows([[1.0, 0.0, 3.0, 2.0]] * 50, dtype=0), s, o, numsamples=3, replacement=False
        )
    )
    (drawn,) = run(4)
    assert drawn.sort(-1).values.tolist() == [[0, 2, 3]] * 50
    assert len({tuple(row) for row in drawn.tolist()}) > 1


def test_philox_is_philox() -> None:
    """The first words for key 0 and counter 0, from the paper's reference code."""
    words = philox(4, words_of(Host(0), CPU), Host((0, 0)), CPU)
    assert [hex(word) for word in words.tolist()] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


@pytest.mark.parametrize("shape", [(3, 5), (16, 16), (1,)])
def test_a_packed_mask_keeps_what_it_says(shape: tuple[int, ...]) -> None:
    def build(seed: Any, offset: Any) -> Any:
        ones = ge.Fill(sizes(*shape), ge.Const(3.0))
        counter = ge.Pack([ge.Const(0, dtype=INT64), offset], axis=0, N=2)
        mask = ge.StatelessDropOutGenMask(
            sizes(*shape), ge.Const(0.75), seed, ge.Const(0, dtype=INT64), counter
        )
        return mask, ge.DropOutDoMask(ones, mask, ge.Const(0.75))

    mask, y = fed(build)(8)
    count = y.numel()
    bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    assert mask.dtype == torch.uint8
    assert mask.numel() == -(-count // 128) * 16
    torch.testing.assert_close(y.reshape(-1), bits.reshape(-1)[:count] * 4.0)
