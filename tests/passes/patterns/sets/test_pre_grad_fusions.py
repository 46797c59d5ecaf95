"""What models write out becomes fused ops before autograd: in inference, in training, and nowhere else."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, fx, nn

from tests.models.zoo import GROUPED, VOCAB
from tests.support.compile import Seen, compile_fn, watching
from tests.support.slow import slow
from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES
from torchair.core import dtypes
from torchair.core.errors import DegradedWarning
from torchair.passes.patterns.sets import pre_grad_fusions

FUSE = "experimental_config.npu_fx_pass"
JOINT = "experimental_config.aot_config_enable_joint_graph"
SWITCH, LEVEL = "ge_config.optimization_switch", "ge_config.oo_level"
CAPTURE = CAPTURE_MODES[1]
EACH_MODE = pytest.mark.parametrize("mode", [GRAPH_MODES[0], CAPTURE])
FORWARD = {"RmsNorm": 3, "RotaryMul": 2, "FlashAttentionScore": 1}
BACKWARD = {"RmsNormGrad": 3, "RotaryMulGrad": 2, "FlashAttentionScoreGrad": 1}


class Llama(nn.Module):
    """One layer, attention written out; the loss comes first."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(**GROUPED | {"num_hidden_layers": 1}, attn_implementation="eager")
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        made = self.model(input_ids=x, labels=x, attention_mask=mask)
        return made.loss, made.logits


def tokens() -> tuple[Tensor, Tensor]:
    """Padded on the left: the first rows of the last text see nothing."""
    x = torch.randint(0, VOCAB, (2, 7))
    mask = torch.ones_like(x)
    mask[-1, :2] = 0
    return x, mask


def fused(seen: Seen) -> dict[str, int]:
    """How often each fused op is in the IR."""
    counts = Counter(op.type for graph in seen.graphs for op in graph.ops)
    return {name: counts[name] for name in (*FORWARD, *BACKWARD) if counts[name]}


@pytest.mark.parametrize("how", ["inference", slow("training"), slow("joint")])
def test_a_llama_has_fused_ops(how: str) -> None:
    """And it has not where the next one is compiled without the option."""
    model, args = Llama(), tokens()
    found = []
    for fuses in (True, False):
        torch.compiler.reset()
        twin = copy.deepcopy(model)
        with watching() as seen, torch.set_grad_enabled(how != "inference"):
            got = compile_fn(model, {FUSE: fuses, JOINT: how == "joint"})(*args)
            wanted = twin(*args)
            torch.testing.assert_close(got, wanted)
            if how == "training":
                got[0].backward()
            if how != "inference":
                wanted[0].backward()
        found.append(fused(seen))
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        model.zero_grad()
    assert found == [FORWARD | (BACKWARD if how != "inference" else {}), {}]


def calls_of(
    fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any] | None = None, mode: str = CAPTURE
) -> list[str]:
    """The npu ops that a function calls when it is compiled; results and gradients are those of eager. That
    of halves computes in float32: each of its steps would be rounded.
    """
    torch.compiler.reset()
    found: list[str] = []

    def look(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        found.extend(str(node.target) for node in gm.graph.nodes if str(node.target).startswith("npu."))

    ours, theirs = ([x.to(kind or x.dtype, copy=True).requires_grad_() for x in args] for kind in KINDS)
    got = compile_fn(fn, {FUSE: True, **(options or {}), "post_grad_custom_pre_pass": look}, mode)(*ours)
    wanted = fn(*theirs)
    rtol, atol = (1e-5, 1e-5) if args[0].dtype == torch.float32 else (5e-2, 0.1)
    tolerance = {"rtol": rtol, "atol": atol, "check_dtype": False}
    torch.testing.assert_close(got, wanted, **tolerance)
    gradients = [torch.autograd.grad(_total(made), given) for made, given in ((got, ours), (wanted, theirs))]
    torch.testing.assert_close(*gradients, **tolerance)
    return [name.removeprefix("npu.").removesuffix(".default") for name in found]


KINDS = (None, torch.float32)


def _total(made: Any) -> Tensor:
    return sum(x.float().square().sum() for x in (made if isinstance(made, tuple) else (made,)))


# RMSNorm

X, GAMMA = torch.randn(2, 3, 8), torch.randn(8)
NORM = ["npu_rms_norm", "npu_rms_norm_backward"]


def rstd(x: Tensor, epsilon: float = 1e-5) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def of_llama(x: Tensor, gamma: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return gamma * (wide * rstd(wide)).to(x.dtype)


NORMS: dict[str, Callable[..., Any]] = {
    "llama": of_llama,
    "square of a product": lambda x, g: g * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)),
    "square": lambda x, g: x * torch.rsqrt(x.square().mean(dim=2, keepdim=True) + 1e-5) * g,
    "through a root": lambda x, g: x / torch.sqrt(torch.mean(x**2, -1, True) + 1e-5) * g,
    "epsilon first": lambda x, g: rstd(x) * x * g + 0 * (1e-5 + g),
    "meta": lambda x, g: (x.float() * rstd(x.float())).type_as(x) * g,
    "gemma": lambda x, g: ((x.float() * rstd(x.float())) * (1.0 + g.float())).type_as(x),
    "torch": lambda x, g: F.rms_norm(x, (8,), g, 1e-5),
    "torch, its epsilon": lambda x, g: F.rms_norm(x, [8], g),
}


@pytest.mark.parametrize("name", NORMS)
def test_spellings_of_rms_norm(name: str) -> None:
    assert calls_of(NORMS[name], (X, GAMMA)) == NORM


# Rotary multiplication

Q, COS, SIN = torch.randn(2, 4, 3, 8), torch.randn(2, 1, 3, 8), torch.randn(2, 1, 3, 8)
ROTARY = ["npu_rotary_mul", "npu_rotary_mul_backward"]


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def by_chunks(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], -1)


def by_split(x: Tensor) -> Tensor:
    first, second = torch.split(x, 4, -1)
    return torch.cat([second.neg(), first], 3)


ROTATIONS: dict[str, Callable[..., Any]] = {
    "llama": lambda q, cos, sin: (q * cos) + (rotate_half(q) * sin),
    "sine first": lambda q, cos, sin: sin * rotate_half(q) + cos * q,
    "chunks": lambda q, cos, sin: q * cos + by_chunks(q) * sin,
    "split": lambda q, cos, sin: torch.add(by_split(q).mul(sin), q.mul(cos)),
    "wide": lambda q, cos, sin: (q.float() * cos.float() + rotate_half(q.float()) * sin.float()).to(q.dtype),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_spellings_of_rotary_multiplication(name: str) -> None:
    assert calls_of(ROTATIONS[name], (Q, COS, SIN)) == ROTARY


# Attention

K, V, MASK = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 6), torch.randn(2, 1, 3, 5)
ATTENTION = ["npu_fusion_attention", "npu_fusion_attention_grad"]


def of_transformers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.3 + mask
    shares = F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), p=0.0, training=True)
    return torch.matmul(shares, v)


ATTENTIONS: dict[str, Callable[..., Any]] = {
    "transformers": of_transformers,
    "through a root": lambda q, k, v, m: (m + q @ k.mT / 8**0.5).softmax(-1) @ v,
    "permuted": lambda q, k, v, m: torch.softmax(0.3 * (q @ k.permute(0, 1, 3, 2)) + m, 3).matmul(v),
    "without a mask": lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v + 0 * m.sum(),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_spellings_of_attention(name: str) -> None:
    assert calls_of(ATTENTIONS[name], (Q, K, V, MASK)) == ATTENTION


HALF = {
    "meta": (NORMS["meta"], (X, GAMMA), NORM),
    "gemma": (NORMS["gemma"], (X, GAMMA), NORM),
    "rotary": (ROTATIONS["wide"], (Q, COS, SIN), ROTARY),
    "attention": (of_transformers, (Q, K, V, MASK), ATTENTION),
}


@EACH_MODE
@pytest.mark.parametrize("name", HALF)
def test_pre_grad_fusion_keeps_half_precision(name: str, mode: str) -> None:
    fn, args, ops = HALF[name]
    halves = tuple(x.bfloat16() for x in args)
    assert calls_of(fn, halves, mode=mode) == ops
    assert compile_fn(fn, {FUSE: True}, mode)(*halves).dtype == fn(*halves).dtype


def narrowing(kind: torch.dtype) -> Callable[..., Tensor]:
    """RMSNorm of float32 whose result is of another kind."""
    return lambda x, gamma: gamma * (x * rstd(x)).to(kind)


def sharing(kind: torch.dtype) -> Callable[..., Tensor]:
    """Scores of float32, shares of another kind."""
    return lambda q, k, v: torch.softmax(q @ k.mT * 1e-4, -1).to(kind) @ v


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_what_is_wider_than_the_result_is_not_rounded(kind: torch.dtype) -> None:
    """Numbers that a half cannot hold are normalised, and scores of float32 are made of float32."""
    with watching() as seen, torch.no_grad():
        for fn, args in (
            (narrowing(kind), (X * 1e5, GAMMA.to(kind))),
            (sharing(kind), (Q * 300, K * 300, V.to(kind))),
        ):
            torch.testing.assert_close(compile_fn(fn, {FUSE: True})(*args), fn(*args), rtol=2e-2, atol=2e-2)
    assert fused(seen) == {"RmsNorm": 1, "FlashAttentionScore": 1}


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -torch.inf])
def test_a_mask_that_is_wider_than_the_rest(low: float) -> None:
    """Rows that see nothing are the mean of all, as in eager; infinities hide."""
    mask = torch.zeros(2, 1, 3, 5)
    mask[0, 0, 1, 2:] = low
    mask[1, 0, 2] = low if low > -torch.inf else 0
    q, k, v = (x.bfloat16() for x in (Q, K, V))
    with torch.no_grad():
        got = compile_fn(of_transformers, {FUSE: True}, CAPTURE)(q, k, v, mask)
        torch.testing.assert_close(got, of_transformers(q, k, v, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("inside", [True, False])
def test_under_autocast_attention_is_that_of_halves(inside: bool) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return of_transformers(q, k, v, mask)

    with watching() as seen, torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        got = compile_fn(fn if inside else of_transformers, {FUSE: True})(Q, K, V, MASK)
    (op,) = seen.ops("FlashAttentionScore")
    assert {x.dtype for x in op.inputs[:4] if x is not None} == {dtypes.to_ge(torch.bfloat16)}
    torch.testing.assert_close(got, fn(Q, K, V, MASK), rtol=2e-2, atol=2e-2)


# Where it must not be


def statistics_without_gradients(x: Tensor, gamma: Tensor) -> Tensor:
    with torch.no_grad():
        scale = rstd(x)
    return x * scale * gamma


def copy_from_before(x: Tensor, gamma: Tensor) -> Tensor:
    base = x * 1
    wide = base.to(torch.float32, copy=True)
    base.add_(1)
    return wide * rstd(wide) * gamma + base


def shares_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    shares = torch.softmax(q @ k.mT, -1)
    return shares @ v, shares


def drops_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v


UNLIKE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "statistics are returned": (lambda x, g: ((s := rstd(x)) * x * g, s), (X, GAMMA)),
    "no gradients in between": (statistics_without_gradients, (X, GAMMA)),
    "a copy from before a write": (copy_from_before, (X, GAMMA)),
    "another dim": (lambda x, g: x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1) * g, (X, GAMMA)),
    "two dims": (lambda x, g: x * torch.rsqrt((x * x).mean((1, 2), keepdim=True) + 1) * g, (X, GAMMA)),
    "gamma per row": (lambda x, g: x * rstd(x) * g, (X, torch.randn(3, 1))),
    "the square of another": (lambda x, y, g: x * rstd(y) * g, (X, X + 1, GAMMA)),
    "epsilon several times": (
        lambda x, g: x * torch.rsqrt(torch.add((x * x).mean(-1, keepdim=True), 0.1, alpha=5)) * g,
        (X, GAMMA),
    ),
    "no epsilon": (lambda x, g: x * torch.rsqrt((x * x).mean(-1, keepdim=True)) * g, (X, GAMMA)),
    "halves in the other order": (
        lambda q, c, s: q * c + torch.cat((q[..., 4:], -q[..., :4]), -1) * s,
        (Q, COS, SIN),
    ),
    "unequal parts": (lambda q, c, s: q * c + torch.cat((-q[..., 3:], q[..., :3]), -1) * s, (Q, COS, SIN)),
    "halves of another": (lambda q, p, c, s: q * c + rotate_half(p) * s, (Q, Q + 1, COS, SIN)),
    "a difference": (lambda q, c, s: torch.add(q * c, rotate_half(q) * s, alpha=-1), (Q, COS, SIN)),
    "shares are returned": (shares_too, (Q, K, V)),
    "shares along another dim": (lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v, (Q, K, V)),
    "keys as they are": (lambda q, k, v: torch.softmax(q @ k, -1) @ v, (Q, K.mT[..., :5].clone(), V)),
    "without heads": (lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, (Q[0], K[0], V[0])),
    "a batch of masks": (
        lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v,
        (Q[:1], K[:1], V[:1], MASK),
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_not_the_same_stays(name: str) -> None:
    fn, args = UNLIKE[name]
    assert calls_of(fn, args) == []


def test_what_is_written_in_between() -> None:
    def fn(x: Tensor, gamma: Tensor) -> Tensor:
        x = x.clone()
        scale = rstd(x)
        x[0].mul_(2)
        return x * scale * gamma

    with watching() as seen, torch.no_grad():
        torch.testing.assert_close(compile_fn(fn, {FUSE: True})(X, GAMMA), fn(X, GAMMA))
    assert fused(seen) == {}


def test_scores_through_nothing_stay() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 0, -1) @ v

    with watching() as seen, torch.no_grad():
        torch.testing.assert_close(compile_fn(fn, {FUSE: True})(Q, K, V), fn(Q, K, V), equal_nan=True)
    assert fused(seen) == {}


def test_what_drops_out_stays() -> None:
    with watching() as seen, torch.no_grad():
        compile_fn(drops_out, {FUSE: True})(Q, K, V)
    assert fused(seen) == {}


# Around it


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, NORM),
        ({SWITCH: "fuse_rms_norm:off"}, []),
        ({SWITCH: "fuse_attention:off"}, NORM),
        ({SWITCH: "fuse_before_autograd:off"}, []),
        ({LEVEL: "O1"}, []),
    ],
)
def test_fusions_are_switched_by_name(options: dict[str, Any], names: list[str]) -> None:
    assert calls_of(of_llama, (X, GAMMA), options, GRAPH_MODES[0]) == names


@torch.library.custom_op("airtest::weighed", mutates_args=())
def weighed(x: Tensor) -> Tensor:
    return x.clone()


@weighed.register_fake
def _(x: Tensor) -> Tensor:
    if FAILURES:
        raise RuntimeError(FAILURES.pop())
    return torch.empty_like(x)


FAILURES: list[str] = []


def test_failing_pre_grad_pass_is_skipped_with_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was switched when it failed is as before: gradients are there."""

    def fn(x: Tensor, gamma: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            weights = torch.ops.airtest.weighed(gamma)
        return of_llama(x, gamma) @ weights

    trace = pre_grad_fusions.trace_before_autograd

    def fail(gm: fx.GraphModule) -> Any:
        FAILURES.append("no way")
        return trace(gm)

    monkeypatch.setattr(pre_grad_fusions, "trace_before_autograd", fail)
    with pytest.warns(DegradedWarning, match="fuse_before_autograd failed: RuntimeError: no way"):
        assert calls_of(fn, (X, GAMMA)) == []
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_may_be_split() -> None:
    def fn(x: Tensor, gamma: Tensor) -> Tensor:
        first = of_llama(x, gamma)
        torch._dynamo.graph_break()
        return of_llama(first.sin(), gamma)

    assert sorted(calls_of(fn, (X, GAMMA), mode=GRAPH_MODES[0])) == sorted(NORM * 2)


def test_sizes_that_data_decides() -> None:
    """Tracing once more makes no symbols that the graph would miss."""

    def fn(x: Tensor, gamma: Tensor) -> Tensor:
        picked = x[x.sum((1, 2)) > -1e9]
        return of_llama(picked, gamma)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert calls_of(fn, (X, GAMMA), mode=GRAPH_MODES[0]) == NORM


def test_a_number_that_changes_is_seen() -> None:
    """A dynamic graph has floats as symbols; a fused op has them as numbers."""

    class Norm(nn.Module):
        epsilon = 0.5

        def forward(self, x: Tensor, gamma: Tensor) -> Tensor:
            return x * rstd(x, self.epsilon) * gamma

    model = Norm()
    with watching() as seen, torch.no_grad():
        run = compile_fn(model, {FUSE: True}, dynamic=True)
        for epsilon in (0.5, 0.25):
            model.epsilon = epsilon
            torch.testing.assert_close(run(X, GAMMA), model(X, GAMMA))
            assert fused(seen) == {"RmsNorm": len(seen.graphs)}
