"""A converted graph that went through the wire format or through text still computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.convert.harness import compare, converted
from torchair import ge
from torchair.engine.evaluate import constant
from torchair.engine.interpret import interpret
from torchair.ge.builder.build import const_attr
from torchair.ge.files.text import from_python, to_python
from torchair.ge.files.verify import verify
from torchair.ge.graph import Graph
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.read import from_model
from torchair.ge.proto.write import to_bytes

WAYS: dict[str, Callable[[Graph], Graph]] = {
    "wire": lambda graph: from_model(to_bytes(graph, runtime=True)),
    "text": lambda graph: from_python(to_python(graph, limit=None)),
}


def mlp(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = torch.nn.functional.silu(x @ w) + 1
    return y.sum(-1), y.transpose(0, 1), y.reshape(-1, 2), y.topk(2)[1], None


def returns_its_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x, x[1:], w * 2


def sizes(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.new_zeros(x.shape[0], w.shape[1]) + x.shape[0], torch.cat([x, x]).view(x.shape[1], -1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [mlp, returns_its_input, sizes])
def test_a_graph_still_runs(function: Callable[..., Any], dynamic: bool, way: str) -> None:
    args = [torch.randn(4, 6), torch.randn(6, 8)]
    graph = converted(function, args, dynamic)[0]
    verify(graph)
    again = WAYS[way](graph)
    verify(again)
    assert same_graph(graph, again, descriptors=way == "wire") is None
    device = torch.device("cpu")
    results, expected = interpret(again, args, device), interpret(graph, args, device)
    compare(results, expected)
    strides = [[value.stride() for value in listed if value is not None] for listed in (results, expected)]
    assert strides[0] == strides[1]


def test_a_constant_is_its_data_whatever_is_displayed() -> None:
    made = ge.Const(0.9).op
    made.attrs["_readable_value"] = ge.attr.Str("0.90000001")
    assert constant(made, torch.device("cpu")).value == 0.9
    made.attrs["value"] = const_attr(0.7)
    assert constant(made, torch.device("cpu")).value == 0.7


@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("readable", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_all_digits_survive(way: str, readable: bool, scoped: bool) -> None:
    graph = Graph("main")
    graph.scopes = [{"_deterministic": ge.attr.Str("1")}] if scoped else []
    with graph:
        x = ge.Data(index=0, node_name="x")
        ge.NetOutput([ge.Mul(x, ge.Const(0.9, node_name="main", readable=readable))])
        part = graph.subgraph("part")
        with part:
            ge.NetOutput([ge.Mul(ge.Data(index=0), ge.Const(0.7, node_name="part", readable=readable))])
    again = WAYS[way](graph)
    assert same_graph(graph, again, descriptors=way == "wire") is None
    assert constant(again.by_name["main"], torch.device("cpu")).value == 0.9
    assert constant(again.subgraphs["part"].by_name["part"], torch.device("cpu")).value == 0.7
    assert "_torchair_exact" not in again.attrs
