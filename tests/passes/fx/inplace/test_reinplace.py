"""Writing in place: intermediates, inputs, scatters, ops that update several tensors, custom ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import fx

from tests.passes.graphs import after_all, calls, in_scope, node, ops, same_results, traced
from tests.passes.programs import Step, function_of, functional, programs
from torchair.codegen import build
from torchair.core.errors import DegradedWarning
from torchair.passes import FX_PASSES, PassContext, run
from torchair.passes.fx.analysis import inplace_analysis, inplace_variants
from torchair.passes.fx.analysis.alias_analysis import Memory, are_disjoint
from torchair.passes.fx.analysis.inplace_analysis import in_place_variant
from torchair.passes.fx.inplace.reinplace import reinplace_inplaceable_ops_pass
from torchair.passes.fx.inplace.reinplace_inputs import reinplace_input_mutated_ops
from torchair.passes.fx.inplace.remove_self_copy import eliminate_self_copy

aten = torch.ops.aten
X, Y = torch.arange(12.0).reshape(3, 4) + 1, torch.ones(3, 4)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.exp(x) + y) * 2


def test_intermediates_are_overwritten() -> None:
    gm, ctx = traced(chain, X, Y)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 3
    assert calls(gm) == ["aten.exp.default", "aten.add_.Tensor", "aten.relu_.default", "aten.mul_.Tensor"]
    same_results(chain, gm, X, Y)


def read_later(x: torch.Tensor) -> torch.Tensor:
    a = torch.exp(x)
    return torch.sin(a) + a


def through_a_view(x: torch.Tensor) -> Any:
    a = torch.exp(x)
    b = torch.sin(a)
    return b, a.view(-1).sum()


def both_returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.exp(x)
    return a, torch.sin(a)


def twice(x: torch.Tensor) -> torch.Tensor:
    a = torch.exp(x)
    return torch.add(a, a)


def expanded(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.exp(x[0]).expand(3, 4))


def other_dtype(x: torch.Tensor) -> torch.Tensor:
    return torch.eq(torch.exp(x), 1)


def larger(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x[0]) + x


@pytest.mark.parametrize(
    "fn", [through_a_view, both_returned, twice, expanded, other_dtype, larger], ids=lambda fn: fn.__name__
)
def test_values_that_must_not_be_overwritten(fn: Any) -> None:
    gm, ctx = traced(fn, X)
    before = calls(gm)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 0
    assert calls(gm) == before


def test_a_value_that_is_read_later_stays_and_the_last_reader_may_write() -> None:
    gm, ctx = traced(read_later, X)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 1
    assert calls(gm) == ["aten.exp.default", "aten.sin.default", "aten.add_.Tensor"]
    assert ctx.skips[0].reason == "add still reads the old value"
    same_results(read_later, gm, X)


def test_sizes_may_be_read_later() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = torch.exp(x)
        return torch.sin(a), a.view(-1).shape[0]

    gm, ctx = traced(fn, X, tracing="symbolic")
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 1
    assert "aten.sin_.default" in calls(gm)


def test_strides_of_unit_dims_stay_those_of_eager() -> None:
    """Eager gives `v * 0.0` and its reciprocal different strides of the last dim; `stack` sees it."""

    def stacked(x: torch.Tensor) -> torch.Tensor:
        v = x.unsqueeze(-1)
        return torch.stack([1 / (v * 0.0), 1 / (v * -0.0)])

    x = (torch.arange(40) % 3 > 0).as_strided((2, 4, 2), (17, 2, 8))
    gm, ctx = traced(stacked, x)
    reinplace_inplaceable_ops_pass(gm, ctx)
    assert gm(x).stride() == stacked(x).stride() == (16, 8, 1, 4, 4)
    # Contiguous values keep canonical strides, and are still written in place.
    gm, ctx = traced(stacked, x.contiguous())
    assert reinplace_inplaceable_ops_pass(gm, ctx) > 0


def test_inputs_and_constants_are_never_overwritten() -> None:
    gm, ctx = traced(lambda x: torch.sin(x.view(-1)) + torch.cos(torch.tensor([1.0])), X)
    reinplace_inplaceable_ops_pass(gm, ctx)
    assert "aten.sin.default" in calls(gm)
    x = X.clone()
    assert torch.equal(gm(x), gm(x))
    assert torch.equal(x, X)


def parts(x: torch.Tensor) -> torch.Tensor:
    a = torch.exp(x)
    a = torch.slice_scatter(a, a[1:] * 2, 0, 1)
    a = torch.select_scatter(a, torch.sin(a[0]), 0, 0)
    return torch.diagonal_scatter(a, x.new_zeros(3))


def test_scatters_write_their_part() -> None:
    gm, ctx = traced(parts, X)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 3
    assert not [name for name in calls(gm) if "scatter" in name]
    assert "aten.mul_.Tensor" in calls(gm)
    assert "aten.sin_.default" in calls(gm)
    same_results(parts, gm, X)


def test_a_scatter_of_a_value_that_is_read_later_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = torch.exp(x)
        return torch.slice_scatter(a, x[1:], 0, 1), a

    gm, ctx = traced(fn, X)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 0
    assert "aten.slice_scatter.default" in calls(gm)


def test_a_failure_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *args: Any) -> bool:
        list(self.graph.nodes)[1].target = aten.cos.default
        raise KeyError("broken")

    monkeypatch.setattr(inplace_analysis.InPlace, "overwrite", fail)
    gm, ctx = traced(chain, X, Y)
    before = calls(gm)
    with pytest.warns(DegradedWarning, match=r"KeyError.*inplace_pass=False"):
        assert reinplace_inplaceable_ops_pass(gm, ctx) == 0
    assert calls(gm) == before
    same_results(chain, gm, X, Y)


def test_what_is_not_implemented_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> bool:
        raise NotImplementedError

    monkeypatch.setattr(inplace_analysis.InPlace, "overwrite", fail)
    gm, ctx = traced(chain, X, Y)
    with pytest.raises(NotImplementedError):
        reinplace_inplaceable_ops_pass(gm, ctx)


@pytest.mark.parametrize(
    ("op", "twin"),
    [
        (aten.add.Tensor, aten.add_.Tensor),
        (aten.index_put.default, aten.index_put_.default),
        (aten.t.default, None),
        (aten.squeeze.default, None),
        (aten.add_.Tensor, None),
        (aten.native_layer_norm.default, None),
    ],
)
def test_inplace_variant_of_each_op_is_found(op: Any, twin: Any) -> None:
    assert in_place_variant(op) is twin


# Inputs


def column(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    new = torch.slice_scatter(cache, torch.select_scatter(cache[1:], x, 1, 2), 0, 1)
    cache.copy_(new)
    return x + 1


def rows_of_a_flat_view(cache: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    flat = cache.view(-1, 4)
    cache.copy_(torch.index_put(flat, [index], rows).view(2, 3, 4))
    return rows + 1


def two_steps(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    new = torch.sin(torch.add(cache, x))
    result = new + 1
    cache.copy_(new)
    return result


def part_in_place(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.copy_(torch.select_scatter(cache, cache[0] + x, 0, 0))
    return x + 1


CACHE, ROW = torch.zeros(2, 3, 4), torch.ones(2, 4)
WRITE_BACKS = [
    pytest.param(column, (X, torch.ones(2)), ["aten.slice.Tensor", "aten.select.int"], id="nested_scatters"),
    pytest.param(
        rows_of_a_flat_view, (CACHE, torch.tensor([1, 4]), ROW), ["aten.index_put_.default"], id="flat_view"
    ),
    pytest.param(two_steps, (X, Y), ["aten.add_.Tensor", "aten.sin_.default"], id="two_steps"),
    pytest.param(part_in_place, (X, torch.ones(4)), ["aten.select.int", "aten.add_.Tensor"], id="part"),
]


@pytest.mark.parametrize(("fn", "args", "there"), WRITE_BACKS)
def test_inputs_are_written_where_they_are(fn: Any, args: tuple[Any, ...], there: list[str]) -> None:
    gm, ctx = traced(fn, *args)
    after_all(gm, ctx)
    assert ctx.changes["reinplace_input_mutated_ops"] >= 1
    assert set(there) <= set(calls(gm))
    assert not any(item.args[1].op != "placeholder" for item in gm.graph.nodes if _is_copy(item)), calls(gm)
    assert not [name for name in calls(gm) if "scatter" in name]
    same_results(fn, gm, *args)


def _is_copy(item: fx.Node) -> bool:
    return item.target is aten.copy_.default


def test_a_place_with_other_strides_takes_no_reshaped_value() -> None:
    """Through a reshape of the new value a part is written; where the input is, that reshape would copy."""

    def fn(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        new = torch.add(cache, 1).contiguous().reshape(-1)
        new = torch.index_put(new, [torch.tensor([0])], x)
        cache.copy_(new.reshape(4, 3))
        return x + 1

    cache = torch.zeros(3, 4).t()
    gm, ctx = traced(fn, cache, torch.ones(1))
    after_all(gm, ctx)
    mine, theirs = cache.clone(), cache.clone()
    gm(mine, torch.ones(1))
    fn(theirs, torch.ones(1))
    torch.testing.assert_close(mine, theirs)


def returned_on_its_own(x: torch.Tensor) -> torch.Tensor:
    new = torch.add(x, 1)
    x.copy_(new)
    return new


def still_read(x: torch.Tensor) -> torch.Tensor:
    new = torch.add(x, 1)
    result = x * 2
    x.copy_(new)
    return result


def never_written_back(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1)


def overwritten_again(x: torch.Tensor) -> torch.Tensor:
    new = torch.add(x, 1)
    x.copy_(new)
    x.copy_(torch.zeros(3, 4))
    return new * 2


@pytest.mark.parametrize(
    "fn",
    [returned_on_its_own, still_read, never_written_back, overwritten_again],
    ids=lambda fn: fn.__name__,
)
def test_inputs_that_must_not_be_written_early(fn: Any) -> None:
    gm, ctx = traced(fn, X)
    assert reinplace_input_mutated_ops(gm, ctx) == 0
    assert "aten.add.Tensor" in calls(gm)
    same_results(fn, gm, X)


def halves(x: torch.Tensor) -> torch.Tensor:
    """The other half is read after one half was written."""
    new = torch.add(x[:1], 1)
    result = x[1:] * 2
    x[:1].copy_(new)
    return result


def test_a_part_that_does_not_overlap_may_be_read() -> None:
    gm, ctx = traced(halves, X)
    assert reinplace_input_mutated_ops(gm, ctx) == 1
    assert "aten.add_.Tensor" in calls(gm)
    same_results(halves, gm, X)


def test_an_overlapping_part_may_not_be_read() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        new = torch.add(x[:2], 1)
        result = x[1:] * 2
        x[:2].copy_(new)
        return result

    gm, ctx = traced(fn, X)
    assert reinplace_input_mutated_ops(gm, ctx) == 0
    same_results(fn, gm, X)


def add_to(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.copy_(torch.add(cache, x))
    return x + 1


def test_constants_of_the_graph_are_written_too() -> None:
    gm, ctx = traced(add_to, X, Y)
    buffer = next(iter(gm.graph.nodes))
    gm.register_buffer("cache", X.clone())
    with gm.graph.inserting_before(buffer):
        attribute = gm.graph.get_attr("cache")
    attribute.meta.update(buffer.meta)
    buffer.replace_all_uses_with(attribute)
    assert reinplace_input_mutated_ops(gm, ctx) == 1
    assert gm.cache.eq(X).all()
    gm(X, Y)
    assert gm.cache.eq(X + Y).all()


def test_self_copies_go() -> None:
    gm, ctx = traced(lambda x, y: [x[:2].copy_(x[:2]), y + 1][1], X, Y)
    assert eliminate_self_copy(gm, ctx) == 1
    assert "aten.copy_.default" not in calls(gm)


def test_a_copy_of_another_value_stays() -> None:
    gm, ctx = traced(lambda x, y: [x[:2].copy_(x[1:]), y + 1][1], X, Y)
    assert eliminate_self_copy(gm, ctx) == 0


# Several tensors at once


@pytest.fixture
def cache_ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A functional op that returns a sum and two updated caches, and its in-place twin."""
    library = torch.library.Library("airpass", "FRAGMENT")
    library.define("both_functional(Tensor x, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor)")
    library.define("both(Tensor x, Tensor(a!) k, Tensor(b!) v) -> Tensor")
    library.define("custom(Tensor(a!) x, Tensor(b!)[] more, Tensor y) -> Tensor")
    library.impl("both_functional", lambda x, k, v: (x.sum(), k + x, v * x), "CompositeExplicitAutograd")
    library.impl("both", lambda x, k, v: [k.add_(x), v.mul_(x), x.sum()][2], "CompositeExplicitAutograd")
    library.impl("custom", _custom, "CompositeExplicitAutograd")
    torch.library.register_fake("airpass::custom", lambda x, more, y: x.new_empty(()), lib=library)
    monkeypatch.setattr(inplace_variants, "_LAST_RESULTS", {})
    inplace_variants.register_in_place("airpass.both_functional.default", "airpass.both.default", (1, 2))
    yield torch.ops.airpass
    library._destroy()


def _custom(x: torch.Tensor, more: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    for item in more:
        item.mul_(y)
    return y.sum()


def test_several_inputs_at_once(cache_ops: Any) -> None:
    def fn(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        total, new_k, new_v = torch.ops.airpass.both_functional(x, k, v)
        result = total + new_k.sum()
        k.copy_(new_k)
        v.copy_(new_v)
        return result

    gm, ctx = traced(fn, X, Y, Y.clone())
    assert reinplace_input_mutated_ops(gm, ctx) == 1
    assert calls(gm) == ["airpass.both.default", "aten.sum.default", "aten.add.Tensor"]
    same_results(fn, gm, X, Y, Y)


def test_several_intermediates_at_once(cache_ops: Any) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.airpass.both_functional(x, torch.exp(x), torch.sin(x))

    gm, ctx = traced(fn, X)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 1
    assert "airpass.both.default" in calls(gm)
    same_results(fn, gm, X)


def test_one_input_that_is_not_updated_stops_all(cache_ops: Any) -> None:
    def fn(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        total, new_k, new_v = torch.ops.airpass.both_functional(x, k, v)
        k.copy_(new_k)
        return total + new_v

    gm, ctx = traced(fn, X, Y, Y.clone())
    assert reinplace_input_mutated_ops(gm, ctx) == 0
    assert "v_1 is an input" in ctx.skips[0].reason
    same_results(fn, gm, X, Y, Y)


def test_several_that_share_memory_stay(cache_ops: Any) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.exp(x)
        return torch.ops.airpass.both_functional(x, a, a)

    gm, ctx = traced(fn, X)
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 0


def test_foreach_ops_are_written_in_place() -> None:
    def fn(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        new = torch._foreach_add([p, q], 1.0)
        p.copy_(new[0])
        q.copy_(new[1])
        return new[0] * 2

    gm, ctx = traced(fn, X, Y)
    assert reinplace_input_mutated_ops(gm, ctx) == 1
    assert calls(gm)[0] == "aten._foreach_add_.Scalar"
    assert "aten.copy_.default" not in calls(gm)
    same_results(fn, gm, X, Y)


# Custom ops that mutate, as AOTAutograd wraps them


def aot(fn: Any, *args: torch.Tensor) -> tuple[fx.GraphModule, PassContext]:
    """The inference graph that AOTAutograd makes."""
    made: list[Any] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        made.append((gm, PassContext(inputs=[n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")])))
        return gm.forward

    backend = torch._dynamo.backends.common.aot_autograd(
        fw_compiler=keep, inference_compiler=keep, keep_inference_input_mutations=True
    )
    with torch.no_grad():
        torch.compile(fn, backend=backend, fullgraph=True)(*(arg.clone() for arg in args))
    return made[0]


def test_a_mutating_op_writes_its_inputs(cache_ops: Any) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.ops.airpass.custom(x, [z], y) + 1

    gm, ctx = aot(fn, X, Y * 2, Y)
    after_all(gm, ctx)
    assert ctx.changes["reinplace_input_mutated_ops"] == 2
    assert [name for name in calls(gm) if "airpass" in name] == ["airpass.custom.default"]
    assert "aten.clone.default" not in calls(gm)
    assert "aten.copy_.default" not in calls(gm)


def test_only_what_is_read_later_is_cloned(cache_ops: Any) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = torch.exp(x), torch.sin(x)
        kept = a.clone()
        torch.ops.airpass.custom(a, [b], y)
        return a + b, kept

    gm, ctx = aot(fn, X, Y)
    after_all(gm, ctx)
    assert ctx.changes["reinplace_input_mutated_ops"] >= 1
    assert calls(gm).count("aten.clone.default") == 1
    x = X.clone()
    want = fn(x.clone(), Y)
    torch.testing.assert_close(tuple(gm(x, Y)), tuple(want))


# Streams


def test_a_reader_on_another_stream_without_an_event_vetoes() -> None:
    gm, ctx = traced(_side_reader, X)
    in_scope(gm, node(gm, aten.cos.default))
    assert reinplace_inplaceable_ops_pass(gm, ctx) == 0
    assert "no event orders the two" in ctx.skips[-1].reason


def test_a_reader_on_another_stream_with_an_event_does_not() -> None:
    gm, ctx = traced(_side_reader, X)
    read = node(gm, aten.cos.default)
    in_scope(gm, read)
    with gm.graph.inserting_after(read):
        token = gm.graph.call_function(ops.record.default)
    with gm.graph.inserting_before(node(gm, aten.sin.default)):
        gm.graph.call_function(ops.wait.default, ([token],))
    assert reinplace_inplaceable_ops_pass(gm, ctx) >= 1
    assert "aten.sin_.default" in calls(gm)


def _side_reader(x: torch.Tensor) -> Any:
    a = torch.exp(x)
    b = torch.cos(a)
    return torch.sin(a), b


# Memory


@given(st.data())
def test_apart_is_never_wrong(data: st.DataObject) -> None:
    base = torch.arange(4 * 6 * 5).reshape(4, 6, 5)
    views = []
    for _ in range(2):
        view = base.transpose(0, 2) if data.draw(st.booleans()) else base
        for dim in range(3):
            start = data.draw(st.integers(0, view.shape[dim] - 1))
            stop = data.draw(st.integers(start + 1, view.shape[dim]))
            view = view[(slice(None),) * dim + (slice(start, stop, data.draw(st.integers(1, 2))),)]
        views.append(view)
    graph, nodes = fx.Graph(), []
    for view in views:
        nodes.append(graph.placeholder("x"))
        nodes[-1].meta["val"] = view
    if are_disjoint(*nodes):
        assert not set(views[0].flatten().tolist()) & set(views[1].flatten().tolist())


def test_apart_sees_columns_and_rows() -> None:
    graph, base = fx.Graph(), torch.zeros(4, 6)
    pairs = [(base[:2], base[2:]), (base[:, :3], base[:, 3:]), (base[:, :4], base[:, 3:])]
    found = []
    for pair in pairs:
        nodes = [graph.placeholder("x") for _ in pair]
        for item, value in zip(nodes, pair, strict=True):
            item.meta["val"] = value
        found.append(are_disjoint(*nodes))
    assert found == [True, True, False]


def test_groups_follow_schemas_and_storages() -> None:
    gm, _ = traced(lambda x: (x.view(-1).split(6)[0] + 1, torch.exp(x).reshape(-1)), X)
    memory = Memory(gm.graph)
    x = next(iter(gm.graph.nodes))
    assert {item.name for item in memory.group(x)} >= {"view", "split", "getitem"}
    assert "add" not in {item.name for item in memory.group(x)}
    assert memory.root(node(gm, aten.exp.default)) is not memory.root(x)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs(steps: list[Step]) -> None:
    """All passes on: results and written inputs are torch's, and results are tensors of their own."""
    fn = function_of(steps)
    x, y = torch.linspace(-1, 1, 24).reshape(4, 6), torch.linspace(2, -2, 24).reshape(4, 6)
    theirs, ours = [x.clone(), y.clone()], [x.clone(), y.clone()]
    try:
        want = fn(*theirs)
    except RuntimeError:
        reject()
    gm, ctx = functional(fn, x.clone(), y.clone())
    after_all(run(FX_PASSES, gm, ctx), ctx)
    got = list(build("eager", gm, ctx.inputs)(list(ours)))
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-4)
    places = [value.untyped_storage().data_ptr() for value in (*got, *ours)]
    assert len(set(places)) == len(places)
