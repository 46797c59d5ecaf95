"""`_inference_rule`: read back and evaluated for other sizes, it says what the fake function says."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchair
from torchair.core import dtypes

FUNCTIONS = {
    "Div": lambda a, b: a / b, "Floor": math.floor, "Ceil": math.ceil, "Mod": lambda a, b: a % b, "Pow": pow,
}  # fmt: skip


def sizes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = x.new_empty(x.shape[0] + y.shape[0] * 3, x.shape[1] // 2)
    return first, y.new_empty(x.shape[1] * 2 - 1, (y.shape[0] + 3) % 5 + 1, 7, dtype=torch.int32)


@torchair.op("inference_rule_test::rule_sizes", fake=sizes)
def rule_sizes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(made.zero_() for made in sizes(x, y))


@torchair.op("inference_rule_test::rule_writes", mutates_args=("c",), fake=lambda c, y: y.new_empty(y.shape))
def rule_writes(c: Tensor, y: Tensor) -> Tensor:
    c.add_(1)
    return y + 1


@torchair.op("inference_rule_test::rule_none", fake=lambda x: x.new_empty(torch.sym_max(x.shape[0], 3)))
def rule_none(x: Tensor) -> Tensor:
    return x.new_zeros(max(x.shape[0], 3))


class Model(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return *rule_sizes(x, y), rule_writes(x[:, ::2], y)


def rules(model: Any, folder: Path, *args: Tensor, dynamic: bool) -> dict[str, Any]:
    torchair.dynamo_export(*args, model=model, export_path=str(folder), dynamic=dynamic)
    graph = torchair.load_air(folder / "export.air").graph
    found = {op.type: op.attrs.get("_inference_rule") for op in graph.ops if op.type.startswith("Rule")}
    return {name: None if rule is None else json.loads(rule.value) for name, rule in found.items()}


def evaluated(rule: dict[str, Any], inputs: list[Tensor]) -> list[tuple[list[int], torch.dtype]]:
    names: dict[str, Any] = dict(FUNCTIONS)
    for dims, value in zip(rule["shape"]["inputs"], inputs, strict=True):
        names |= {} if dims is None else dict(zip(dims, value.shape, strict=True))
    texts = rule["shape"]["outputs"]
    made = [[int(eval(text, {}, names)) for text in dims] for dims in texts]  # the rule is arithmetic
    return list(zip(made, map(dtypes.to_torch, rule["dtype"]), strict=True))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inference_rule_holds_for_other_sizes(dynamic: bool, tmp_path: Path) -> None:
    found = rules(Model(), tmp_path, torch.randn(4, 6), torch.randn(3, 7), dynamic=dynamic)
    for shapes in (((4, 6), (3, 7)), ((5, 9), (8, 2)), ((2, 3), (6, 6))):
        x, y = (torch.empty(shape) for shape in shapes)
        wanted = [(list(made.shape), made.dtype) for made in sizes(x, y)]
        assert evaluated(found["RuleSizes"], [x, y]) == wanted
        assert evaluated(found["RuleWrites"], [x, y]) == [(list(v.shape), v.dtype) for v in (y, x)]


def test_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    class Only(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return rule_like(x, y)

    @torchair.op("inference_rule_test::rule_like", fake=lambda x, y: torch.empty_like(y))
    def rule_like(x: Tensor, y: Tensor) -> Tensor:
        return y * 2

    found = rules(Only(), tmp_path, torch.randn(4), torch.randn(5), dynamic=True)
    assert found["RuleLike"]["shape"] == {"inputs": [None, ["s1"]], "outputs": [["s1"]]}


def test_inexpressible_inference_rule_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Larger(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return rule_none(x)

    with caplog.at_level(logging.WARNING, "torchair"):
        found = rules(Larger(), tmp_path, torch.randn(5), dynamic=True)
    assert found == {"RuleNone": None}
    assert "RuleNone has no rule of its sizes" in caplog.text
