"""Chains of graphs around ops that need the host: what goes where, what passes between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchair.capture.strategies.chain import PartitionedProgram
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.fxgraph.partition import Partition, partition

aten = torch.ops.aten
X = torch.arange(12.0).view(3, 4)


def traced(fn: Callable[..., Any], *args: Any) -> fx.GraphModule:
    gm = make_fx(fn, tracing_mode="fake")(*args)
    returned = gm.graph.output_node().args[0]
    gm.graph.output_node().args = (returned if isinstance(returned, list | tuple) else (returned,),)
    return gm


def split(gm: fx.GraphModule, *hosts: Any) -> list[Partition]:
    return partition(gm, lambda node: node.target in hosts)


def names(each: Partition) -> list[str]:
    calls = [node.target for node in each.gm.graph.nodes if node.op == "call_function"]
    return [str(call).split(".")[1] for call in calls]


def run_partitions(gm: fx.GraphModule, parts: list[Partition], *args: Any) -> list[Any]:
    calls = [lambda own, part=part: part.gm(*own) for part in parts]
    return PartitionedProgram.of(gm, list(zip(parts, calls, strict=True)), "eager", "")(list(args))


def check(fn: Callable[..., Any], *hosts: Any, shape: list[tuple[bool, list[str]]], args: Any = (X,)) -> None:
    gm = traced(fn, *[arg.clone() for arg in args])
    parts = split(gm, *hosts)
    assert [(part.on_host, names(part)) for part in parts] == shape
    mine, theirs = [arg.clone() for arg in args], [arg.clone() for arg in args]
    want = fn(*theirs)
    torch.testing.assert_close(
        run_partitions(gm, parts, *mine), list(want) if isinstance(want, tuple | list) else [want]
    )
    torch.testing.assert_close(mine, theirs)


def test_without_such_ops_there_is_one_graph() -> None:
    check(lambda x: x.sin() + 1, shape=[(False, ["sin", "add"])])


def test_an_op_in_the_middle_makes_three() -> None:
    check(
        lambda x: x.sin().exp().cos(),
        aten.exp.default,
        shape=[(False, ["sin"]), (True, ["exp"]), (False, ["cos"])],
    )


def test_what_depends_on_nothing_else_runs_before() -> None:
    """Two ops for the host, one stop: the second does not wait for the recording."""
    check(
        lambda x, y: (x.sin() + y.exp()).cos() * y.exp(),
        aten.exp.default,
        shape=[(True, ["exp", "exp"]), (False, ["sin", "add", "cos", "mul"])],
        args=(X, X + 1),
    )


def test_a_write_is_neither_overtaken_nor_overtakes() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.exp()
        x.add_(1)
        return a, x.exp()

    check(fn, aten.exp.default, shape=[(True, ["exp"]), (False, ["add_"]), (True, ["exp"])])


def test_views_are_taken_again_where_they_are_read() -> None:
    """The memory passes, so a write through a view of it is seen to write it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        row = y[1]
        z = y.exp()
        row.add_(z[0])
        return y

    gm = traced(fn, X)
    parts = split(gm, aten.exp.default)
    assert [(part.on_host, names(part)) for part in parts] == [
        (False, ["mul"]), (True, ["exp"]), (False, ["select", "select", "add_"]),
    ]  # fmt: skip
    assert [[node.name for node in part.takes] for part in parts] == [["x_1"], ["mul"], ["mul", "exp"]]
    torch.testing.assert_close(run_partitions(gm, parts, X.clone())[0], fn(X.clone()))


def test_one_of_several_results_stays_with_its_maker() -> None:
    gm = traced(lambda x: x.sort(0).values.exp(), X)
    parts = split(gm, aten.sort.default)
    assert [part.on_host for part in parts] == [True, False]
    assert [node.name for node in parts[1].takes] == ["getitem"]


def test_random_numbers_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x) + x, torch.randn_like(x)

    gm = traced(fn, X)
    parts = split(gm, aten.randn_like.default)
    assert [part.on_host for part in parts] == [False, True]
    torch.manual_seed(3)
    made = run_partitions(gm, parts, X)
    torch.manual_seed(3)
    torch.testing.assert_close(made, list(fn(X)))


def test_inputs_and_constants_may_be_returned() -> None:
    gm = traced(lambda x: (x, x.exp(), None, 3), X)
    x, _, nothing, three = run_partitions(gm, split(gm, aten.exp.default), X)
    assert (x is X, nothing, three) == (True, None, 3)
