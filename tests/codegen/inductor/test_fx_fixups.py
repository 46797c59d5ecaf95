"""What Inductor would get wrong is right here, in both modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair.codegen.base.graph_prep import add_call
from torchair.codegen.inductor import fx_fixups
from torchair.core.errors import DegradedWarning

aten = torch.ops.aten
MODES = ("max-autotune", "npugraph_ex")


def writes_after_a_copy(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x[:2].add_(1)
    y = x.clone()
    x[:2].mul_(2)
    return y


def copies_into_another_input(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x[:2].add_(1)
    z.copy_(x)
    x[:2].mul_(2)
    return z + 1


def reads_by_index_in_between(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    x.index_put_((torch.tensor([0, 2]),), z[:1], accumulate=True)
    y = x * 1
    x[1].mul_(2)
    return y


@torch.library.custom_op("airtest::fill_three", mutates_args=("x",))
def fill_three(x: torch.Tensor) -> None:
    x.fill_(3)


def scaled_softmax(x: torch.Tensor) -> torch.Tensor:
    scale = torch.zeros(2, 4, 4)
    y = x.view(2, 4, 4).softmax(-1)
    fill_three(scale)
    return y * scale


def softmax_with_dropout(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x.view(2, 4, 4).softmax(-1), 0.3, True)


@pytest.mark.parametrize(
    ("fn", "mode"),
    [(scaled_softmax, "npugraph_ex"), slow(softmax_with_dropout, "max-autotune")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_written_value_is_read_after_the_write(fn: Callable[..., Any], mode: str) -> None:
    """A loop was fused with one in front of the op: attention with dropout was nothing but zeros."""
    x = torch.randn(8, 4, requires_grad=True)
    with torch._inductor.config.patch(fallback_random=True):
        torch.manual_seed(0)
        got = compile_fn(fn, mode=mode, codegen="inductor", fullgraph=True)(x)
    torch.manual_seed(0)
    torch.testing.assert_close(got, fn(x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "fn",
    [writes_after_a_copy, copies_into_another_input, reads_by_index_in_between],
    ids=lambda f: f.__name__,
)
def test_values_read_after_write_of_input(fn: Callable[..., Any], mode: str) -> None:
    run = compile_fn(fn, mode=mode, codegen="inductor", fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            given = [torch.randn(4, 2), torch.randn(4, 2)]
            twins = [tensor.clone() for tensor in given]
            torch.testing.assert_close(run(*given), fn(*twins))
            torch.testing.assert_close(given, twins)


@pytest.mark.parametrize("mode", MODES)
def test_an_op_of_which_torch_tells_other_strides(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x, dim=1) * 2

    run = compile_fn(fn, mode=mode, codegen="inductor", fullgraph=True)
    x = torch.tensor([[3, 1, 3, 2], [0, 1, 0, 2]])
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        torch.no_grad(),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always", DegradedWarning)
        for _ in range(2):
            torch.testing.assert_close(run(x), fn(x))
    assert any("aten.unique_dim.default" in str(one.message) for one in said)


@torch.library.custom_op("airtest::careless", mutates_args=())
def careless(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


@careless.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_op_with_a_careless_fake() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return careless(x).cumsum(0) + 1

    run, x = compile_fn(fn, mode="npugraph_ex", codegen="inductor", fullgraph=True), torch.randn(3, 5)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DegradedWarning)
        for _ in range(2):
            torch.testing.assert_close(run(x), fn(x))
    text = str(said[0].message)
    assert "one has another layout than its fake says" in text
    assert "test_fx_fixups.py" in text
    assert "register_fake" in text


def widen_products(gm: fx.GraphModule, device: torch.device | None) -> fx.GraphModule:
    """What Inductor's passes do on CUDA where it measures faster: products of a wider matrix, cut."""
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.mm.default)):
        with gm.graph.inserting_before(node):
            call = partial(add_call, gm.graph, node.meta["val"].fake_mode)
            wide = call(
                aten.mm.default, node.args[0], call(aten.constant_pad_nd.default, node.args[1], [0, 1])
            )
            cut = call(aten.slice.Tensor, wide, 1, 0, node.meta["val"].shape[1])
        node.replace_all_uses_with(cut)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@pytest.mark.parametrize("dynamic", [slow(False), True])
@pytest.mark.parametrize("codegen", ["inductor", slow("native")])
def test_outputs_keep_their_strides(codegen: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's passes may give an output other strides."""
    monkeypatch.setattr(fx_fixups, "joint_graph_passes", widen_products)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = codegen

    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        flat, diagonal = (a @ b.sin()).view(-1), (a @ b.cos()).diagonal()
        window = (a @ b.tan()).as_strided((2, 2), (3, 1), 1)
        rows = (a @ b.neg()).split(2)
        return (
            product,
            (product + 1).t(),
            torch.relu(a @ b.relu()).t(),
            (a @ b.exp()).t(),
            flat,
            diagonal,
            window,
            *rows,
        )

    run = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)
    a, b = torch.randn(5, 4), torch.randn(4, 3)
    results, expected = run(a, b), fn(a, b)
    torch.testing.assert_close(results, expected)
    assert [r.stride() for r in results] == [e.stride() for e in expected]
