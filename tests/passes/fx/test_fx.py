"""FX passes: a small graph in, a small graph out; and a case each where the pass must not fire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from tests.passes.graphs import calls, in_scope, node, traced
from torchair.passes import PassContext
from torchair.passes.fx.cleanup.eliminate_dead_code import eliminate_dead_code
from torchair.passes.fx.cleanup.optimize_sym_input import optimize_sym_input
from torchair.passes.fx.cleanup.remove_noop_ops import NOOPS, remove_noop_ops
from torchair.passes.fx.cleanup.view_to_reshape import view_to_reshape
from torchair.passes.fx.inplace.recover_view_inplace import TWINS, recover_view_inplace
from torchair.passes.fx.inplace.reinplace_inputs import reinplace_input_mutated_ops
from torchair.passes.patterns.sets.registry import apply_pattern_passes, register_replacement

aten = torch.ops.aten
prims = torch.ops.prims


def test_remove_noop_ops() -> None:
    gm, ctx = traced(lambda x: torch.relu(x[:].clone() + 1), torch.ones(3))
    assert remove_noop_ops(gm, ctx) >= 1
    assert calls(gm) == ["aten.add.Tensor", "aten.relu.default"]


CHANGES_NOTHING = {
    aten.alias.default: aten.alias,
    aten.cat.default: lambda x: torch.cat([x]),
    aten.ceil.default: lambda x: x.int().ceil(),
    aten.clone.default: torch.clone,
    aten.constant_pad_nd.default: lambda x: aten.constant_pad_nd(x, [0, 0]),
    aten.copy.default: lambda x: aten.copy(torch.zeros_like(x), x),
    aten.floor.default: lambda x: x.int().floor(),
    aten.pow.Tensor_Scalar: lambda x: x**1,
    aten.repeat.default: lambda x: x.repeat(1, 1),
    aten.round.default: lambda x: x.int().round(),
    aten.slice.Tensor: lambda x: aten.slice(x, 0, 0, 9),
    aten.slice_scatter.default: lambda x: aten.slice_scatter(torch.zeros_like(x), x),
    aten.trunc.default: lambda x: x.int().trunc(),
    aten.view.default: lambda x: x.view(2, 2),
    aten.view.dtype: lambda x: aten.view(x, torch.float32),
    prims.convert_element_type.default: lambda x: prims.convert_element_type(x, torch.float32),
    prims.device_put.default: lambda x: prims.device_put(x, torch.device("cpu")),
}
CHANGES_SOMETHING = {
    aten.cat.default: lambda x: torch.cat([x, x]),
    aten.ceil.default: torch.ceil,
    aten.clone.default: lambda x: x.t().clone(memory_format=torch.contiguous_format),
    aten.constant_pad_nd.default: lambda x: aten.constant_pad_nd(x, [1, -1]),
    aten.copy.default: lambda x: aten.copy(x.int(), x),
    aten.pow.Tensor_Scalar: lambda x: x**2,
    aten.repeat.default: lambda x: x.repeat(1, 2),
    aten.round.default: torch.round,
    aten.slice.Tensor: lambda x: x[1:],
    aten.slice_scatter.default: lambda x: aten.slice_scatter(x, x[1:].sin(), 0, 1),
    aten.view.default: lambda x: x.view(4),
    aten.view.dtype: lambda x: x.view(torch.int32),
    prims.convert_element_type.default: lambda x: prims.convert_element_type(x, torch.float16),
}


def test_all_noops_are_tried() -> None:
    assert CHANGES_NOTHING.keys() == NOOPS.keys()


@pytest.mark.parametrize("op", CHANGES_NOTHING, ids=str)
def test_what_changes_nothing_goes(op: Any) -> None:
    check_noop(op, CHANGES_NOTHING[op], is_left=False)


@pytest.mark.parametrize("op", CHANGES_SOMETHING, ids=str)
def test_what_changes_something_stays(op: Any) -> None:
    check_noop(op, CHANGES_SOMETHING[op], is_left=True)


def check_noop(op: Any, fn: Any, is_left: bool) -> None:
    x = torch.tensor([[0.5, 1.25], [2.75, 3]])
    gm, ctx = traced(lambda x: fn(x).sin(), x)
    assert str(op) in calls(gm)
    remove_noop_ops(gm, ctx)
    assert (str(op) in calls(gm)) == is_left
    assert torch.equal(gm(x), fn(x).sin())


def test_three_results_that_look_alike_are_three_tensors() -> None:
    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        return made.view(2, 2), made.view(2, 2), made[0:2]

    gm, ctx = traced(work, torch.randn(2, 2))
    remove_noop_ops(gm, ctx)
    results = gm.graph.output_node().args[0]
    assert len(set(results)) == 3  # type: ignore[arg-type]


def test_a_clone_that_is_returned_stays() -> None:
    gm, ctx = traced(lambda x: x.clone(), torch.ones(3))
    assert remove_noop_ops(gm, ctx) == 0
    assert calls(gm) == ["aten.clone.default"]


def test_two_clones_in_a_row_leave_one() -> None:
    """Each is needless, but without both the graph would return its input, or one tensor twice."""
    gm, ctx = traced(
        lambda x: (x.clone().view(-1).clone(), torch.sin(x).clone().view(-1).clone()), torch.ones(3)
    )
    remove_noop_ops(gm, ctx)
    assert calls(gm).count("aten.clone.default") == 1
    x = torch.ones(3)
    assert gm(x)[0].data_ptr() != x.data_ptr()


def test_view_to_reshape() -> None:
    gm, ctx = traced(lambda x: x.view(4).view(torch.int32), torch.ones(2, 2))
    assert view_to_reshape(gm, ctx) == 1
    assert calls(gm)[0] == "aten.reshape.default"
    assert "aten.view.dtype" in calls(gm)


def sized() -> fx.GraphModule:
    """f(s0, x[s0]) with `s0` used as a number."""
    gm, _ = traced(lambda x: x * x.shape[0], torch.ones(3), tracing="symbolic")
    size = next(iter(gm.graph.find_nodes(op="call_function", target=aten.sym_size.int)))
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        number = gm.graph.placeholder("s0")
    number.meta["val"] = size.meta["val"]
    size.replace_all_uses_with(number)
    gm.graph.erase_node(size)
    return gm


def test_optimize_sym_input() -> None:
    gm = sized()
    assert optimize_sym_input(gm, PassContext()) == 1
    assert calls(gm)[0] == "aten.sym_size.int"
    number = next(iter(gm.graph.nodes))
    assert number.op == "placeholder"
    assert not number.users


def test_a_number_that_no_tensor_has_stays() -> None:
    gm = sized()
    tensor = [node for node in gm.graph.nodes if node.op == "placeholder"][1]
    tensor.meta["val"] = torch.empty(7)
    assert optimize_sym_input(gm, PassContext()) == 0


def test_eliminate_dead_code_keeps_writes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.sin(x)
        x.copy_(torch.cos(x))
        return x + 1

    gm, ctx = traced(fn, torch.ones(2))
    eliminate_dead_code(gm, ctx)
    assert calls(gm) == ["aten.cos.default", "aten.copy_.default", "aten.add.Tensor"]


def cache_update(extra_reader: bool) -> fx.GraphModule:
    """cache.view(-1) scattered into, viewed back and copied into cache, as AOTAutograd spells it."""
    scatter = torch.library.custom_op("airtest::scatter_update", mutates_args=())(lambda_scatter)
    scatter_ = torch.library.custom_op("airtest::scatter_update_", mutates_args=("x",))(lambda_scatter_)
    scatter.register_fake(lambda x, u: torch.empty_like(x))
    scatter_.register_fake(lambda x, u: None)

    def fn(cache: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        flat = cache.view(-1)
        cache.copy_(scatter(flat, update).view(2, 3))
        return cache + 1 if extra_reader else update + 1

    gm, _ = traced(fn, torch.zeros(2, 3), torch.ones(6))
    return gm


def lambda_scatter(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return x + u


def lambda_scatter_(x: torch.Tensor, u: torch.Tensor) -> None:
    x.add_(u)


def test_recover_view_inplace(monkeypatch: Any) -> None:
    monkeypatch.setitem(TWINS, "airtest.scatter_update.default", "airtest.scatter_update_.default")
    gm = cache_update(extra_reader=False)
    assert recover_view_inplace(gm, PassContext()) == 1
    assert "aten.copy_.default" not in calls(gm)
    assert "airtest.scatter_update_.default" in calls(gm)


def test_recover_view_inplace_not_with_other_readers(monkeypatch: Any) -> None:
    monkeypatch.setitem(TWINS, "airtest.scatter_update.default", "airtest.scatter_update_.default")
    gm, ctx = cache_update(extra_reader=True), PassContext()
    copied = next(iter(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)))
    with gm.graph.inserting_before(copied):
        gm.graph.call_function(aten.neg.default, (copied.args[0],))
    assert recover_view_inplace(gm, ctx) == 0
    assert "aten.copy_.default" in calls(gm)
    assert ctx.skips[0].reason == "the input has other readers"


def test_register_replacement_fires_and_can_be_vetoed() -> None:
    allowed = True

    def search(x: torch.Tensor) -> torch.Tensor:
        return torch.asinh(torch.sinh(x))

    def replace(x: torch.Tensor) -> torch.Tensor:
        return torch.tan(x)

    register_replacement(search, replace, [torch.ones(2)], extra_check=lambda match: allowed)
    gm, ctx = traced(lambda x: torch.asinh(torch.sinh(x)) + 1, torch.ones(3))
    assert apply_pattern_passes(gm, ctx) == 1
    assert calls(gm) == ["aten.tan.default", "aten.add.Tensor"]
    allowed = False
    gm, ctx = traced(lambda x: torch.asinh(torch.sinh(x)) + 1, torch.ones(3))
    assert apply_pattern_passes(gm, ctx) == 0
    assert calls(gm)[:2] == ["aten.sinh.default", "aten.asinh.default"]


def test_a_replacement_does_not_cross_streams() -> None:
    register_replacement(lambda x: torch.acosh(torch.cosh(x)), lambda x: torch.tan(x), [torch.ones(2)])
    gm, ctx = traced(lambda x: torch.acosh(torch.cosh(x)), torch.ones(3))
    in_scope(gm, node(gm, aten.cosh.default))
    assert apply_pattern_passes(gm, ctx) == 0
    gm, ctx = traced(lambda x: torch.acosh(torch.cosh(x)), torch.ones(3))
    in_scope(gm, node(gm, aten.cosh.default), node(gm, aten.acosh.default))
    assert apply_pattern_passes(gm, ctx) == 1


def write_row(cache: torch.Tensor, index: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    new = torch.index_copy(cache, 0, index, row)
    result = new.sum()
    cache.copy_(new)
    return result


ROW = (torch.zeros(4, 2), torch.tensor([1]), torch.ones(1, 2))


def test_reinplace_input_mutated_ops() -> None:
    gm, ctx = traced(write_row, *ROW)
    assert reinplace_input_mutated_ops(gm, ctx) == 1
    assert calls(gm) == ["aten.index_copy_.default", "aten.sum.default"]
    cache = ROW[0].clone()
    assert gm(cache, *ROW[1:]).item() == 2
    assert cache.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]


def test_an_old_value_that_is_still_read_is_not_overwritten() -> None:
    def fn(cache: torch.Tensor, index: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        view = cache.view(-1)
        new = torch.index_copy(cache, 0, index, row)
        result = view + 1
        cache.copy_(new)
        return result

    gm, ctx = traced(fn, *ROW)
    assert reinplace_input_mutated_ops(gm, ctx) == 0
    assert "still reads the old value" in ctx.skips[0].reason


def test_an_op_that_reads_the_input_twice_stays() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.add(x, x.t()))
        return x.sum()

    gm, ctx = traced(fn, torch.ones(2, 2))
    assert reinplace_input_mutated_ops(gm, ctx) == 0


def test_one_sample_stands_for_two_arguments() -> None:
    sample = torch.ones(2)
    register_replacement(
        lambda a, b: torch.atan2(torch.hypot(a, b), b), lambda a, b: torch.fmod(a, b), (sample, sample)
    )
    gm, ctx = traced(lambda x, y: torch.atan2(torch.hypot(x, y), y), torch.ones(3), torch.ones(3))
    assert apply_pattern_passes(gm, ctx) == 1
    assert calls(gm) == ["aten.fmod.Tensor"]


def test_patterns_are_matched_as_our_graphs_are_written() -> None:
    """Inductor would take `silu` and `softmax` apart in the pattern; our graphs keep them whole."""
    register_replacement(
        lambda x: torch.nn.functional.silu(torch.softmax(x, -1)),
        lambda x: torch.nn.functional.silu(torch.erf(x)),
        [torch.ones(2, 2)],
    )
    gm, ctx = traced(lambda x: torch.nn.functional.silu(torch.softmax(x, -1)), torch.ones(3, 3))
    assert apply_pattern_passes(gm, ctx) == 1
    assert calls(gm) == ["aten.erf.default", "aten.silu.default"]
