"""Replacements in models that others have written: they fire in every layer, with the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import npugraph_ex
import torchair
from tests.models.zoo import GROUPED, TEXT
from torchair.core.errors import DegradedWarning
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.passes.patterns.sets import registry

LAYERS = 2
IDS = torch.arange(14).view(2, 7)
RAN: list[str] = []


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """As Llama writes it."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + epsilon)).to(x.dtype)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


def add_norm(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    total = a + b
    return F.layer_norm(total, total.shape[-1:], weight, bias, epsilon)


@torch.library.custom_op("replaced::norm", mutates_args=())
def fused_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    RAN.append("norm")
    return norm(x, weight, epsilon)


@torch.library.custom_op("replaced::gelu", mutates_args=())
def fused_gelu(x: torch.Tensor) -> torch.Tensor:
    RAN.append("gelu")
    return F.gelu(x)


@torch.library.custom_op("replaced::add_norm", mutates_args=())
def fused_add_norm(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    RAN.append("add_norm")
    return add_norm(a, b, weight, bias, epsilon)


for _op in (fused_norm, fused_gelu, fused_add_norm):
    _op.register_fake(lambda x, *rest: torch.empty_like(x))

ROW, WIDE = torch.ones(4), torch.ones(2, 4)
RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "norm": (norm, lambda x, w, e: fused_norm(x, w, e), [WIDE, ROW, 1.5e-6]),
    "gelu": (gelu, lambda x: fused_gelu(x), [WIDE]),
    "add_norm": (
        add_norm,
        lambda a, b, w, bias, e: fused_add_norm(a, b, w, bias, e),
        [WIDE, WIDE, ROW, ROW, 1.5e-6],
    ),
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Adds a rule to both sets, for this test alone."""
    known = dict(EXTENSIONS)
    own = registry.RuleSet("npugraph_ex", "")
    monkeypatch.setattr(registry, "OF_TORCHAIR", registry.RuleSet("torchair", ""))
    monkeypatch.setattr(registry, "OF_CAPTURE", own)
    monkeypatch.setattr("torchair.npugraph_ex.patterns.OF_CAPTURE", own)

    def add(name: str) -> None:
        torchair.register_replacement(*RULES[name])
        npugraph_ex.register_replacement(*RULES[name])

    yield add
    EXTENSIONS.clear()
    EXTENSIONS.update(known)


def llama(dtype: torch.dtype) -> nn.Module:
    config = transformers.LlamaConfig(**GROUPED | {"num_hidden_layers": LAYERS})
    return transformers.LlamaModel(config).eval().to(dtype)


def bert(dtype: torch.dtype) -> nn.Module:
    return (
        transformers.BertModel(transformers.BertConfig(**TEXT | {"num_hidden_layers": LAYERS}))
        .eval()
        .to(dtype)
    )


def backend_of(mode: str) -> Any:
    if mode == "npugraph_ex":
        capture = npugraph_ex.CompilerConfig()
        capture.force_eager = True
        return npugraph_ex.get_npu_backend(compiler_config=capture)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    return torchair.get_npu_backend(compiler_config=config)


full = pytest.mark.full
CASES = [
    pytest.param(
        *case, mode, dtype, id=f"{case[1]}-{mode}-{dtype}", marks=[] if number + place + half == 0 else full
    )
    for number, case in enumerate(
        [(llama, "norm", 2 * LAYERS + 1), (bert, "gelu", LAYERS), (bert, "add_norm", 2 * LAYERS + 1)]
    )
    for place, mode in enumerate(["npugraph_ex", "max-autotune"])
    for half, dtype in enumerate([torch.bfloat16, torch.float32])
]


@pytest.mark.parametrize(("make", "name", "times", "mode", "dtype"), CASES)
def test_a_users_op_in_every_layer(
    make: Callable[[torch.dtype], nn.Module],
    name: str,
    times: int,
    mode: str,
    dtype: torch.dtype,
    register: Callable[[str], None],
) -> None:
    torch.manual_seed(0)
    model = make(dtype)
    register(name)
    RAN.clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegradedWarning)  # the op has no converter, and runs eagerly
        want = model(IDS).last_hidden_state
        RAN.clear()
        got = torch.compile(model, backend=backend_of(mode), dynamic=True)(IDS).last_hidden_state
    assert [name] * times == RAN
    torch.testing.assert_close(got, want)


@full
def test_explain_counts_them(register: Callable[[str], None]) -> None:
    register("norm")
    register("gelu")
    with torch.no_grad():
        found = torchair.explain(llama(torch.float32), IDS, use_cache=False)
    fired = {rule.rule.split()[0]: rule.fired for rule in found.rules}
    assert fired == {"norm": 2 * LAYERS + 1, "gelu": 0}
    assert next(r.why for r in found.rules if not r.fired).startswith("the graph has no aten.gelu.default")
