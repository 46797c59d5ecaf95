"""Scopes, streams and events: the ops, the passes that close and complete them, and the printed program."""

from __future__ import annotations

import gc
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx

import torchair
from tests.passes.graphs import after_all, calls, in_scope, node, ops, same_results, traced
from torchair.codegen import build
from torchair.core.errors import BadPass
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import annotate
from torchair.passes import PassContext
from torchair.passes.fx.analysis.stream_order import Order
from torchair.passes.fx.streams.check_scopes import check_scopes
from torchair.passes.fx.streams.event_closure import apply_event_closure_with_multi_stream
from torchair.passes.fx.streams.event_record import apply_event_record
from torchair.passes.fx.streams.single_stream import run_on_one_stream
from torchair.passes.fx.streams.stream_markers import resolve_default_stream_markers

aten = torch.ops.aten
X, Y = torch.randn(3, 3), torch.randn(3, 3)
MARKERS = tuple(stream_ops.MARKERS)


def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = torch.mm(x, y)
    b = torch.exp(x)
    return a + b


def on_the_side() -> tuple[fx.GraphModule, PassContext]:
    gm, ctx = traced(two, X, Y)
    in_scope(gm, node(gm, aten.mm.default))
    return gm, ctx


# The ops


@pytest.mark.parametrize("namespace", stream_ops.NAMESPACES)
@pytest.mark.parametrize("name", [schema.partition("(")[0] for schema in stream_ops.SCHEMAS])
def test_every_op_exists_and_stays_in_a_graph(namespace: str, name: str) -> None:
    op = getattr(getattr(torch.ops, namespace), name).default
    graph = fx.Graph()
    graph.call_function(op)
    graph.output(None)
    graph.eliminate_dead_code()
    kept = any(item.target is op for item in graph.nodes)
    assert kept == (name != "record")


def test_a_token_carries_its_event() -> None:
    token = ops.record()
    assert token.numel() == 0
    assert isinstance(token.recorded, stream_ops.Event)
    torch.ops.air.wait([token, torch.ones(2)])


def test_events_have_names_and_two_tables() -> None:
    kept = stream_ops.create_event("test_events", created_inside=True)
    ops.tagged_event_record("test_events", True)
    ops.tagged_event_wait_on_stream("test_events", "0", "0", "0", True)
    with pytest.raises(AssertionError, match="test_events"):
        ops.tagged_event_wait("test_events")
    with pytest.raises(ValueError, match="test_events"):
        stream_ops.create_event("test_events", created_inside=True)
    del kept
    with pytest.raises(AssertionError, match="test_events"):
        ops.tagged_event_record("test_events", True)


def test_events_of_a_graph_go_with_its_program() -> None:
    gc.collect()
    before = len(stream_ops._events[True])
    gm, ctx = waiting(for_token=False)
    after_all(gm, ctx)
    program = build("eager", gm, ctx.inputs)
    del gm, ctx
    gc.collect()
    assert len(stream_ops._events[True]) > before
    torch.testing.assert_close(program([X, Y])[0], two(X, Y))
    del program
    gc.collect()
    assert len(stream_ops._events[True]) == before


def test_threads_that_name_a_stream_get_one() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: stream_ops.labelled_stream("of many threads"), range(64)))
    assert len(set(map(id, made))) == 1


def test_streams_of_one_label_are_one() -> None:
    assert stream_ops.labelled_stream("a") is stream_ops.labelled_stream("a")
    assert stream_ops.labelled_stream("a") is not stream_ops.labelled_stream("b")


def test_scopes_nest_and_know_the_stream_they_came_from() -> None:
    def entered() -> bool:
        return getattr(stream_ops._here, "entry", None) is not None

    with stream_ops.StreamScope([stream_ops.LABEL], ["a"]):
        assert entered()
        ops.scope_enter([stream_ops.LABEL], ["b"], True)
        ops.scope_exit(True)
        assert entered()
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(entered()))
        thread.start()
        thread.join()
        assert seen == [False]
    assert not entered()


def test_keeping_for_a_stream_survives_functionalisation_without_a_clone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.ops.air.record_tagged_stream_(y, "side")
        return y * 2

    seen: list[str] = []

    def look(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        seen.extend(calls(gm))

    torch.compile(fn, backend="npugraph_ex", options={"post_grad_custom_pre_pass": look})(X)
    assert seen == ["aten.add.Tensor", "air.record_tagged_stream.default", "aten.mul.Tensor"]


# Validity


def test_balanced_scopes_are_valid() -> None:
    gm, ctx = on_the_side()
    assert check_scopes(gm, ctx) == 0


@pytest.mark.parametrize(("op", "what"), [("enter", "never closed"), ("exit", "never opened")])
def test_unbalanced_scopes_are_an_error(op: str, what: str) -> None:
    def unbalanced(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
        with gm.graph.inserting_before(node(gm, aten.mm.default)):
            if op == "enter":
                gm.graph.call_function(ops.scope_enter.default, (["_user_stream_label"], ["side"]))
            else:
                gm.graph.call_function(ops.scope_exit.default)

    compiled = torch.compile(two, backend="npugraph_ex", options={"post_grad_custom_post_pass": unbalanced})
    with pytest.raises(RuntimeError, match=what) as caught:
        compiled(X, Y)
    assert "custom" in str(caught.value)
    assert "graph breaks" in str(caught.value)


def test_named_regions_must_pair() -> None:
    def super_kernel_scope_begin(name: str) -> None: ...

    def super_kernel_scope_end(name: str) -> None: ...

    gm, ctx = traced(two, X, Y)
    first = node(gm, aten.mm.default)
    with gm.graph.inserting_before(first):
        begin = gm.graph.call_function(super_kernel_scope_begin, ("a",))
    with pytest.raises(BadPass, match="never ends"):
        check_scopes(gm, ctx)
    with gm.graph.inserting_after(first):
        gm.graph.call_function(super_kernel_scope_end, ("a",))
    assert check_scopes(gm, ctx) == 0
    begin.args = ("b",)
    with pytest.raises(BadPass, match="'a' ends"):
        check_scopes(gm, ctx)


# Fork and join


def test_a_side_stream_is_forked_and_joined() -> None:
    gm, ctx = on_the_side()
    assert apply_event_closure_with_multi_stream(gm, ctx) == 1
    assert calls(gm) == [
        "npugraph_ex.tagged_event_record.default",
        "npugraph_ex.scope_enter.default",
        "npugraph_ex.tagged_event_wait.default",
        "aten.mm.default",
        "npugraph_ex.tagged_event_record.default",
        "npugraph_ex.scope_exit.default",
        "aten.exp.default",
        "aten.add.Tensor",
        "npugraph_ex.tagged_event_wait.default",
    ]
    enter, leave = node(gm, ops.scope_enter.default), node(gm, ops.scope_exit.default)
    assert enter.args[-1] is True
    assert leave.args == (True,)
    first, last = (node(gm, ops.tagged_event_record.default, number) for number in (0, 1))
    assert node(gm, ops.tagged_event_wait.default, 0).args == first.args
    assert node(gm, ops.tagged_event_wait.default, 1).args == last.args
    assert first.args[0].endswith("_scope_enter_default")
    assert last.args[0].endswith("_scope_exit_default")
    same_results(two, gm, X, Y)


def test_one_label_in_two_blocks_is_forked_at_the_first_and_joined_after_the_last() -> None:
    gm, ctx = traced(two, X, Y)
    in_scope(gm, node(gm, aten.mm.default))
    in_scope(gm, node(gm, aten.exp.default))
    assert apply_event_closure_with_multi_stream(gm, ctx) == 1
    assert calls(gm).count("npugraph_ex.tagged_event_wait.default") == 2


def test_streams_with_an_identity_are_closed_once_each() -> None:
    gm, ctx = traced(two, X, Y)
    for target in (aten.mm.default, aten.exp.default):
        in_scope(gm, node(gm, target))
    for enter in [item for item in gm.graph.nodes if item.target is ops.scope_enter.default]:
        enter.args = ([stream_ops.LABEL, *stream_ops.IDENTITY], ["graph_0_s", "7", "0", "1"])
    assert apply_event_closure_with_multi_stream(gm, ctx) == 1
    start = node(gm, ops.tagged_event_record.default)
    assert node(gm, ops.tagged_event_wait_on_stream.default).args == (start.args[0], "7", "0", "1", True)
    joined = node(gm, ops.tagged_event_record_on_stream.default)
    assert joined.args[0].endswith("_stream_id_7_device_index_0_device_type_1")
    assert node(gm, ops.tagged_event_wait.default).args == (joined.args[0], True)
    same_results(two, gm, X, Y)


def test_a_graph_without_streams_gets_no_events() -> None:
    gm, ctx = traced(two, X, Y)
    assert apply_event_closure_with_multi_stream(gm, ctx) == 0
    assert not [name for name in calls(gm) if "npugraph_ex" in name]


def test_a_scope_of_another_kind_moves_nothing() -> None:
    gm, ctx = on_the_side()
    node(gm, ops.scope_enter.default).args = (["_op_aicore_num"], ["4"])
    assert apply_event_closure_with_multi_stream(gm, ctx) == 0


# Tokens


def waiting(for_token: bool) -> tuple[fx.GraphModule, PassContext]:
    gm, ctx = on_the_side()
    product, later = node(gm, aten.mm.default), node(gm, aten.add.Tensor)
    value = product
    if for_token:
        with gm.graph.inserting_after(product):
            value = gm.graph.call_function(ops.record.default)
        value.meta["val"] = product.meta["val"].new_empty(0)
    for _ in range(2):
        with gm.graph.inserting_before(later):
            gm.graph.call_function(ops.wait.default, ([value],))
    return gm, ctx


def test_a_wait_for_a_value_waits_for_a_token_behind_it() -> None:
    gm, ctx = waiting(for_token=False)
    assert apply_event_record(gm, ctx) == 1
    names = calls(gm)
    assert names[names.index("aten.mm.default") + 1] == "npugraph_ex.record.default"
    token = node(gm, ops.record.default)
    assert [node(gm, ops.wait.default, number).args for number in (0, 1)] == [([token],)] * 2
    assert token.kwargs == {"device": torch.device("cpu")}
    same_results(two, gm, X, Y)


def test_a_wait_for_a_token_stays() -> None:
    gm, ctx = waiting(for_token=True)
    assert apply_event_record(gm, ctx) == 0
    assert calls(gm).count("npugraph_ex.record.default") == 1


# Order


def test_one_stream_is_ordered_and_two_are_not() -> None:
    gm, _ = on_the_side()
    order = Order(gm.graph)
    product, exp, total = (node(gm, op) for op in (aten.mm.default, aten.exp.default, aten.add.Tensor))
    assert order.is_before(exp, total)
    assert not order.is_before(total, exp)
    assert not order.is_before(product, exp)
    assert order.is_before(next(iter(gm.graph.nodes)), product)
    assert order.is_before(product, gm.graph.output_node())


def test_events_order_through_a_third_stream() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.sin(x), torch.cos(x), torch.exp(x)

    gm, _ = traced(fn, X)
    first, second, third = (node(gm, op) for op in (aten.sin.default, aten.cos.default, aten.exp.default))
    for item, label in ((first, "a"), (second, "b")):
        in_scope(gm, item, label=label)
    for tag, after, before in (("1", first, second), ("2", second, third)):
        with gm.graph.inserting_after(after):
            gm.graph.call_function(ops.tagged_event_record.default, (tag,))
        with gm.graph.inserting_before(before):
            gm.graph.call_function(ops.tagged_event_wait.default, (tag,))
    assert Order(gm.graph).is_before(first, third)
    gm.graph.erase_node(node(gm, ops.tagged_event_wait.default, 0))
    assert not Order(gm.graph).is_before(first, third)


def test_events_on_a_named_stream_belong_to_that_stream() -> None:
    """Recorded from outside of the scope, on the stream that the scope names."""
    gm, _ = on_the_side()
    identity = ("7", "0", "1")
    node(gm, ops.scope_enter.default).args = ([*stream_ops.IDENTITY], [*identity])
    product, exp = node(gm, aten.mm.default), node(gm, aten.exp.default)
    with gm.graph.inserting_before(exp):
        gm.graph.call_function(ops.tagged_event_record_on_stream.default, ("e", *identity))
        gm.graph.call_function(ops.tagged_event_wait_on_stream.default, ("e", *MARKERS))
    assert Order(gm.graph).is_before(product, exp)
    with gm.graph.inserting_before(exp):
        gm.graph.call_function(ops.tagged_stream_wait_stream.default, (*identity, *MARKERS))
    assert not Order(gm.graph).is_before(exp, product)


def test_nodes_know_their_scopes() -> None:
    gm, _ = on_the_side()
    product = node(gm, aten.mm.default)
    with gm.graph.inserting_before(product):
        keys, values = ["_op_aicore_num", "_op_vectorcore_num"], ["4", "8"]
        gm.graph.call_function(ops.scope_enter.default, (keys, values))
    with gm.graph.inserting_after(product):
        gm.graph.call_function(ops.scope_exit.default)
    annotate(gm.graph)
    assert product.meta["stream_label"] == "side"
    assert product.meta["core_limit_scope"] == ("4", "8")
    assert node(gm, aten.exp.default).meta["stream_label"] is None
    assert node(gm, aten.exp.default).meta["core_limit_scope"] is None


# Markers


def test_markers_become_the_stream_of_the_call() -> None:
    gm, ctx = traced(two, X, Y)
    kept = stream_ops.create_event("test_markers", created_inside=True)
    with gm.graph.inserting_before(node(gm, aten.mm.default)):
        for _ in range(2):
            gm.graph.call_function(
                ops.tagged_event_record_on_stream.default, ("test_markers", *MARKERS, True)
            )
    assert resolve_default_stream_markers(gm, ctx) == 2
    assert [name for name in calls(gm) if "entry_stream" in name] == [str(stream_ops.entry_stream)]
    assert not [marker for marker in MARKERS if marker in str(gm.graph)]
    program = build("eager", gm, ctx.inputs)
    torch.testing.assert_close(program([X, Y])[0], two(X, Y))
    assert "stream_field(" in program.source
    del kept


def test_other_identities_stay() -> None:
    gm, ctx = traced(two, X, Y)
    with gm.graph.inserting_before(node(gm, aten.mm.default)):
        gm.graph.call_function(ops.tagged_event_record_on_stream.default, ("e", "7", "0", "1", True))
    before = calls(gm)
    assert resolve_default_stream_markers(gm, ctx) == 0
    assert calls(gm) == before


# Programs


def test_the_program_prints_a_block() -> None:
    gm, ctx = on_the_side()
    with gm.graph.inserting_before(node(gm, aten.exp.default)):
        gm.graph.call_function(ops.scope_enter.default, (["_user_stream_label"], ["empty"]))
        gm.graph.call_function(ops.scope_exit.default)
    program = build("eager", gm, ctx.inputs)
    assert program.source == textwrap.dedent(
        """\
        def program(args):
            x_1, y_1, = args
            args.clear()
            with StreamScope(['_user_stream_label'], ['side']):
                mm = torch_mm(x_1, y_1)
            with StreamScope(['_user_stream_label'], ['empty']):
                pass
            exp = torch_exp(x_1)
            add = torch_add(mm, exp)
            del exp
            return [add]
        """
    )
    torch.testing.assert_close(program([X, Y])[0], two(X, Y))


def test_error_in_scope_restores_stream() -> None:
    gm, ctx = on_the_side()
    program = build("eager", gm, ctx.inputs)
    with pytest.raises(RuntimeError):
        program([X, torch.ones(7, 7)])
    assert getattr(stream_ops._here, "entry", None) is None


def test_a_program_without_streams_drops_the_scopes() -> None:
    gm, ctx = waiting(for_token=True)
    assert run_on_one_stream(gm, ctx) == 5
    assert calls(gm) == ["aten.mm.default", "aten.exp.default", "aten.add.Tensor"]


def test_a_scope_of_another_kind_stays_in_a_program_without_streams() -> None:
    gm, ctx = on_the_side()
    node(gm, ops.scope_enter.default).args = (["_op_aicore_num"], ["4"])
    assert run_on_one_stream(gm, ctx) == 0
    assert "npugraph_ex.scope_enter.default" in calls(gm)


def test_all_passes_keep_a_side_stream_right() -> None:
    gm, ctx = waiting(for_token=False)
    after_all(gm, ctx)
    assert ctx.changes["apply_event_closure_with_multi_stream"] == 1
    assert ctx.changes["apply_event_record"] == 1
    gm.graph.lint()
    program = build("eager", gm, ctx.inputs)
    torch.testing.assert_close(program([X, Y])[0], two(X, Y))


def to_side(gm: fx.GraphModule, inputs: Any, config: Any) -> None:
    for item in [item for item in gm.graph.nodes if item.target is aten.mm.default]:
        in_scope(gm, item)


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_users_side_stream_gives_eagers_numbers(codegen: str, eagerly: bool) -> None:
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.engine_config.codegen = codegen
    config.debug.run_eagerly = eagerly
    config.post_grad_custom_post_pass = to_side
    compiled = torch.compile(two, backend=torchair.get_npu_backend(compiler_config=config))
    for _ in range(3):
        torch.testing.assert_close(compiled(X, Y), two(X, Y))
