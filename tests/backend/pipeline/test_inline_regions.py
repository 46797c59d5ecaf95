"""Regions that Dynamo traces once are part of the graph that calls them, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
from torch import fx, nn

import torchair
from tests.support.slow import slow
from tests.support.training import backward_through_the_ir
from torchair.backend.pipeline.inline_regions import inline_regions
from torchair.core.torch_private.compilers.aot_autograd import aot_autograd
from torchair.core.torch_private.operators.schemas import HigherOrderOperator

MODES = ("max-autotune", "npugraph_ex")


@torch.compiler.nested_compile_region
def gate(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() * y, x + 1


@torch.compiler.nested_compile_region
def with_constant(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0])


@torch.compiler.nested_compile_region
def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = gate(x, y)
    c, _ = gate(b, a)
    return c


@torch.compiler.nested_compile_region
def write(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.mul_(2).add_(x)
    return cache.sum() + x


@torch.compiler.nested_compile_region
def write_row(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[1:2].add_(x[:1])
    return cache + x


def plain(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = gate(x, y)
    return gate(a + b, y)[0] - x


def nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    return twice(twice(x, y), y) + y


def writing(x: torch.Tensor, y: torch.Tensor) -> Any:
    return write(x, y) * write(x, y + 1)


def writing_a_part(x: torch.Tensor, y: torch.Tensor) -> Any:
    return write_row(x, y) * write_row(x, y + 1)


def writing_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    return write(x[:2], y[:2]) * write(x[1:3], y[:2])


def constants(x: torch.Tensor, y: torch.Tensor) -> Any:
    return with_constant(x) + with_constant(y)


@torch.compiler.nested_compile_region
def multiply(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.addmm_(x, x)
    return cache * 2


def writing_layouts(x: torch.Tensor, y: torch.Tensor) -> Any:
    """What a region writes keeps its strides: views behind it count on them."""
    total = torch.zeros(())
    for _ in range(2):
        total = total + multiply(x, y).sum() + write(x[::2], y[::2]).sum()
        for part in (x[1], x[:, 2], x[:3, 1:].diagonal()):
            total = total + write(part, y[0, : part.shape[0]]).sum()
    return x + total


LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 4),
    "inside another": lambda: torch.randn(6, 4)[1:5],
    "transposed": lambda: torch.randn(4, 4).t(),
    "with gaps": lambda: torch.randn(4, 8)[:, ::2],
    "a part": lambda: torch.randn(6, 8)[1:5, :4],
}


@pytest.mark.filterwarnings("ignore:aten.as_strided_scatter.*carried through:torchair.DegradedWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [MODES[0], slow(MODES[1])])
def test_inlined_region_keeps_layouts(mode: str, layout: str) -> None:
    torch.manual_seed(0)
    ours, y = LAYOUTS[layout](), torch.randn(4, 4)
    theirs = ours.clone()
    with torch.no_grad():
        got = torch.compile(writing_layouts, backend=backend(mode), dynamic=False)(ours, y)
        torch.testing.assert_close(got, writing_layouts(theirs, y))
    torch.testing.assert_close(ours, theirs)


FUNCTIONS = (plain, nested, writing, writing_a_part, writing_views)


def backend(mode: str) -> Callable[..., Any]:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"  # the ops as they stand there, as in a recording
    return torchair.get_npu_backend(compiler_config=config)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_equal_to_eager(function: Callable[..., Any], mode: str, dynamic: bool) -> None:
    compiled = torch.compile(function, backend=backend(mode), dynamic=dynamic)
    for rows in (3, 5):
        ours = [torch.randn(rows, 4) for _ in range(2)]
        theirs = [x.clone() for x in ours]
        with torch.no_grad():
            torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_constants_of_a_region(mode: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():  # with symbols torch 2.13 itself cannot trace this
        got = torch.compile(constants, backend=backend(mode), dynamic=False)(x, y)
    torch.testing.assert_close(got, constants(x, y))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [plain, nested])
def test_inlined_region_gradients_equal_eager(function: Callable[..., Any], mode: str) -> None:
    compiled = torch.compile(function, backend=backend(mode))
    ours = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    with backward_through_the_ir():
        compiled(*ours).sum().backward()
    function(*theirs).sum().backward()
    torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 4))

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, place, self.linear(x))
        return x + self.cache.sum(0)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, place)
        return x


@pytest.mark.parametrize("mode", MODES)
def test_layers_with_caches_convert_without_fall_back(mode: str) -> None:
    ours, theirs = Layers(), Layers()
    theirs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend=backend(mode))
    with torch.no_grad():
        for step in range(2):
            x, place = torch.randn(1, 4), torch.tensor([step])
            torch.testing.assert_close(compiled(x, place), theirs(x, place))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        assert torchair.explain(ours, x, place).fallbacks == []


def graph_of(function: Callable[..., Any]) -> fx.GraphModule:
    """What AOTAutograd makes of it."""
    made: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        made.append(gm)
        return gm

    compiled = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(function, backend=compiled, dynamic=False)(torch.randn(3, 4), torch.randn(3, 4))
    return made[0]


COUNTS = [(plain, 2), (nested, 6), (constants, 2), (writing, 2), (writing_views, 2)]


@pytest.mark.parametrize(("function", "count"), COUNTS)
def test_nothing_of_a_region_is_left(function: Callable[..., Any], count: int) -> None:
    gm = graph_of(function)
    assert inline_regions(gm) == count
    assert not any(isinstance(node.target, HigherOrderOperator) for node in gm.graph.nodes)
    assert not [name for name, _ in gm.named_modules() if name]
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    torch.testing.assert_close(gm(x.clone(), y)[0], function(x.clone(), y))
    assert inline_regions(gm) == 0


def test_a_result_that_is_no_tensor() -> None:
    """A backward region has None where an operand needs no gradient."""
    inner = fx.Graph()
    inner.output((inner.call_function(torch.ops.aten.sin.default, (inner.placeholder("x"),)), None, 3))
    outer = fx.Graph()
    x = outer.placeholder("x")
    region = outer.get_attr("region")
    call = outer.call_function(torch.ops.higher_order.invoke_subgraph, (region, "region", x))
    outer.output(tuple(outer.call_function(getitem, (call, at)) for at in range(3)))
    gm = fx.GraphModule({"region": fx.GraphModule({}, inner)}, outer)
    assert inline_regions(gm) == 1
    got, nothing, three = gm(torch.ones(2))
    torch.testing.assert_close(got, torch.ones(2).sin())
    assert (nothing, three) == (None, 3)
