"""What the analysis of an FX graph finds out about its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.capture import InputInfo, Role, inputs_of
from torchair.capture.base.inputs import KeyPart
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv


def analyse(
    function: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cpu", static: tuple[int, ...] = ()
) -> InputInfo:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        args = [mode.from_tensor(torch.empty(shape, device=device)) for shape in shapes]
        gm = make_fx(function, tracing_mode="real")(*args)
    return inputs_of(gm, None, static)


def test_roles_by_what_the_graph_does() -> None:
    def function(weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        cache.copy_(x * weight)
        return x.view(-1), x + y

    inputs = analyse(function, (4,), (4,), (4,), (4,), static=(0,))
    assert inputs.roles == (Role.PARAMETER, Role.MUTATED, Role.ALIAS, Role.PLAIN)
    assert inputs.aliases == {2: [0]}
    assert inputs.key == ()


def test_a_write_through_a_view_mutates_the_input() -> None:
    inputs = analyse(lambda cache, x: [cache[1:3].add_(x)], (4,), (2,))
    assert inputs.roles == (Role.MUTATED, Role.PLAIN)
    assert inputs.aliases == {0: [0]}


def test_a_parameter_that_is_written_stays_a_parameter() -> None:
    inputs = analyse(lambda mean, x: [mean.mul_(0.9).sum() + x], (4,), (4,), static=(0,))
    assert inputs.roles == (Role.PARAMETER, Role.PLAIN)


def test_out_arguments_are_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.ops.aten.add.out(x, x, out=y)
        return x.sum()

    assert analyse(function, (4,), (4,)).roles == (Role.PLAIN, Role.MUTATED)


def dynamic_graph(function: Callable[..., Any], *args: torch.Tensor) -> InputInfo:
    """Analyse what a backend sees with dynamic shapes."""
    found: list[InputInfo] = []

    def backend(gm: torch.fx.GraphModule, example: list[Any]) -> Any:
        found.append(
            inputs_of(gm, [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"])
        )
        return gm.forward

    torch.compile(function, backend=backend, dynamic=True)(*args)
    return found[0]


def test_symbols_make_the_key() -> None:
    inputs = dynamic_graph(lambda x, y: x @ y, torch.ones(3, 5), torch.ones(5, 7))
    symbols = inputs.having(Role.SYMBOL)
    assert len(symbols) == 3
    assert inputs.key == tuple(map(KeyPart, symbols))


def test_a_size_without_a_scalar_input_is_keyed_by_its_dimension() -> None:
    gm = make_fx(lambda t: t + 1, tracing_mode="symbolic")(torch.empty(3, 5))
    assert inputs_of(gm).key == (KeyPart(0, "size", 0), KeyPart(0, "size", 1))


def test_cpu_scalar_input_has_host_role() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, host = torch.empty(4, device="cuda"), torch.empty(())
        mixed = make_fx(lambda a, b: a * b, tracing_mode="real")(x, host)
    assert inputs_of(mixed).roles == (Role.PLAIN, Role.HOST)


def test_random_ops_are_noticed() -> None:
    assert analyse(lambda x: torch.rand_like(x) + x, (4,)).random
    assert not analyse(lambda x: x + x, (4,)).random
