"""Graphs that are captured by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchair.sim.npu import handlers


def test_nothing_is_done_until_a_graph_is_replayed() -> None:
    x, total = torch.ones(4, device="npu"), torch.zeros(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        assert torch.npu.is_current_stream_capturing()
        total += 1
        y = nn.functional.layer_norm(x * total, (4,)) + total
    assert not torch.npu.is_current_stream_capturing()
    assert total.tolist() == [0.0] * 4
    for step in (1, 2):
        graph.replay()
        assert total.tolist() == [step] * 4
    x.copy_(torch.arange(4.0))
    graph.replay()
    want = nn.functional.layer_norm(torch.arange(4.0) * 3, (4,)) + 3
    torch.testing.assert_close(y.cpu(), want)


def test_running_statistics_are_written_by_replays_alone() -> None:
    layer, x, graph = nn.BatchNorm1d(3).npu(), torch.randn(8, 3, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph), torch.no_grad():
        y = nn.functional.batch_norm(x, layer.running_mean, layer.running_var, training=True)
    assert layer.running_mean is not None
    assert layer.running_mean.tolist() == [0.0] * 3
    graph.replay()
    torch.testing.assert_close(layer.running_mean, x.mean(0) * 0.1)
    torch.testing.assert_close(y.mean(0), torch.zeros(3, device="npu"), atol=1e-5, rtol=0)


def test_replays_draw_new_numbers() -> None:
    graph = torch.npu.NPUGraph()
    torch.manual_seed(5)
    with torch.npu.graph(graph):
        x = torch.rand(4, device="npu")
    assert torch.npu.default_generators[0].get_offset() == 0
    graph.replay()
    first = x.clone()
    graph.replay()
    assert not torch.equal(first, x)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4, device="npu"), first)


def test_values_cannot_be_asked_for() -> None:
    x = torch.ones(4, device="npu")
    pinned = torch.empty(4).pin_memory()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2
        for ask in (
            lambda: y.sum().item(),
            y.cpu,
            y.nonzero,
            torch.npu.synchronize,
            lambda: y.copy_(torch.ones(4)),
        ):
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                ask()
        pinned.copy_(y, non_blocking=True)
    graph.replay()
    assert pinned.tolist() == [2.0] * 4


def test_use_of_freed_memory_in_graph_raises() -> None:
    x = torch.ones(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2
    del x
    with pytest.raises(RuntimeError, match=r"use after free.*aten::mul"):
        graph.replay()
    del y


def test_memory_of_a_pool_is_used_again() -> None:
    torch.npu.empty_cache()
    pool, x = torch.npu.graph_pool_handle(), torch.ones(1 << 16, device="npu")
    reserved = torch.npu.memory_reserved()
    graphs = []
    for _ in range(4):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, pool=pool):
            y = ((x + 1) * 2).sum()
        graphs.append((graph, y))
    assert torch.npu.memory_reserved() - reserved == 2 * x.nbytes + (1 << 20)
    for graph, y in graphs:
        graph.replay()
        assert y.item() == 4 * (1 << 16)
    assert graphs[0][0].pool() == pool
    graphs.clear()
    del graph, y
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == reserved


def test_graphs_of_one_pool_read_what_the_others_made() -> None:
    """Forward and backward by hand: the second lets go of what autograd kept of the first."""
    weight, x = torch.randn(4, 4, device="npu", requires_grad=True), torch.randn(3, 4, device="npu")
    pool, forward, backward = torch.npu.graph_pool_handle(), torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(forward, pool=pool):
        y = (x @ weight).tanh() @ weight
    with torch.npu.graph(backward, pool=pool):
        (grad,) = torch.autograd.grad(y.sum(), weight)
    for _ in range(2):
        x.copy_(torch.randn(3, 4))
        forward.replay()
        backward.replay()
        on_host = weight.detach().cpu().requires_grad_()
        want = (x.cpu() @ on_host).tanh() @ on_host
        want.sum().backward()
        torch.testing.assert_close(y.detach().cpu(), want.detach())
        torch.testing.assert_close(grad.cpu(), on_host.grad)


def test_a_later_graph_takes_what_it_lets_go_of_an_earlier_one() -> None:
    """Replayed in the order of capture, both are right."""
    x, pool = torch.ones(1 << 16, device="npu"), torch.npu.graph_pool_handle()
    first, second = torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(first, pool=pool):
        y = x + 1
    reserved, address = torch.npu.memory_reserved(), y.data_ptr()
    with torch.npu.graph(second, pool=pool):
        doubled = y * 2
        del y
        z = doubled - 1
    assert z.data_ptr() == address
    assert torch.npu.memory_reserved() - reserved == x.nbytes
    for value in (1.0, 5.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert z.cpu().eq((value + 1) * 2 - 1).all()


def test_capturing_writes_nothing_of_an_earlier_graph() -> None:
    x, pool = torch.ones(3, device="npu"), torch.npu.graph_pool_handle()
    first, second = torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(first, pool=pool):
        y = x + 1
    first.replay()
    with torch.npu.graph(second, pool=pool):
        y.add_(5)
    assert y.tolist() == [2.0] * 3
    second.replay()
    assert y.tolist() == [7.0] * 3


def of_another_pool() -> tuple[torch.Tensor, tuple[int, int]]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        made = torch.ones(3, device="npu")
    return made, torch.npu.graph_pool_handle()


def of_a_pool_that_has_ended() -> tuple[torch.Tensor, tuple[int, int]]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        made = torch.ones(3, device="npu")
    return made, graph.pool()


def of_a_pool_of_the_user() -> tuple[torch.Tensor, tuple[int, int]]:
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        made = torch.ones(3, device="npu")
    return made, pool.id


@pytest.mark.parametrize("source", [of_another_pool, of_a_pool_that_has_ended, of_a_pool_of_the_user])
def test_freed_memory_that_no_graph_of_the_pool_made(
    source: Callable[[], tuple[torch.Tensor, tuple[int, int]]],
) -> None:
    before = torch.npu.memory_allocated()
    made, pool = source()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        y = made * 2
    graph.replay()
    del made
    with pytest.raises(RuntimeError, match=r"use after free.*aten::mul"):
        graph.replay()
    del y
    assert torch.npu.memory_allocated() == before


def test_a_side_stream_is_captured_with_the_first() -> None:
    x, side, graph = torch.ones(4, device="npu"), torch.npu.Stream(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = x + 1
        torch.npu.current_stream().wait_stream(side)
        z = y * 2
    x.fill_(4)
    graph.replay()
    assert z.tolist() == [10.0] * 4


def test_external_events_hold_a_graph_back() -> None:
    x, event, graph = torch.ones(2, device="npu"), torch.npu.ExternalEvent(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        event.wait()
        event.reset()
        y = x + 1
    update = torch.npu.Stream()
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        with pytest.raises(RuntimeError, match="deadlock"):
            y.cpu()
        event.record(update)
        assert y.tolist() == [value + 1] * 2


def test_graphed_callables() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 2).npu()
    made = nn.Linear(4, 2).npu()
    made.load_state_dict(plain.state_dict())
    made = torch.npu.make_graphed_callables(made, (torch.randn(3, 4, device="npu"),))
    for _ in range(2):
        x = torch.randn(3, 4, device="npu")
        plain.zero_grad()
        made.zero_grad()
        plain(x).square().sum().backward()
        made(x).square().sum().backward()
        torch.testing.assert_close(made.weight.grad, plain.weight.grad)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(4, 8), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Tanh(), nn.Sigmoid(), nn.Linear(8, 2))


def whole(model: nn.Sequential, x: torch.Tensor) -> nn.Module:
    return torch.npu.make_graphed_callables(model, (x,))


def in_two(model: nn.Sequential, x: torch.Tensor) -> nn.Module:
    """The backward of the second runs between forward and backward of the first."""
    first, second = model[:5], model[5:]
    samples = (x,), (first(x).detach().requires_grad_(),)
    return nn.Sequential(*torch.npu.make_graphed_callables((first, second), samples))


@pytest.mark.parametrize("graphed", [whole, in_two])
def test_graphed_layers_train_as_on_the_host(
    graphed: Callable[[nn.Sequential, torch.Tensor], nn.Module],
) -> None:
    plain, model = layers(), layers().npu()
    made = graphed(model, torch.randn(64, 4, device="npu"))
    steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)]
    for _ in range(4):
        x = torch.randn(64, 4)
        want, got = plain(x), made(x.npu())
        torch.testing.assert_close(got.detach().cpu(), want.detach())
        for result, step in zip((want, got), steps, strict=True):
            step.zero_grad()
            result.square().mean().backward()
            step.step()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach())


def test_a_pool_that_is_none() -> None:
    with pytest.raises(TypeError, match="graph_pool_handle"), torch.npu.graph(torch.npu.NPUGraph(), pool="x"):
        pass
    assert not torch.npu.is_current_stream_capturing()


def test_the_tasks_are_written(tmp_path: Path) -> None:
    graph, x = torch.npu.NPUGraph(), torch.ones(2, device="npu")
    graph.enable_debug_mode()
    with torch.npu.graph(graph):
        y = (x + 1).relu()
    graph.debug_dump(str(tmp_path / "graph.json"))
    events = json.loads((tmp_path / "graph.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["aten::add", "aten::relu"]
    assert (tmp_path / "graph.aligned.json").exists()
    with pytest.raises(RuntimeError, match="auto_dispatch_capture"):
        graph.update([])
    graph.reset()
    del y
    with pytest.raises(RuntimeError, match="not captured"):
        graph.replay()


def grouped(
    given: torch.Tensor, scale: float = 2.0
) -> tuple[torch.npu.NPUGraph, Any, torch.Tensor, torch.Tensor]:
    """A graph of three calls, the second of which is a group."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        first = given + 1
        torch.npu.graph_task_group_begin(stream)
        second = first * scale
        group = torch.npu.graph_task_group_end(stream)
        result = second - 1
    return graph, group, first, result


def test_a_call_is_given_again_with_other_numbers() -> None:
    given = torch.ones(3, device="npu")
    graph, group, first, result = grouped(given)
    graph.replay()
    assert result.tolist() == [3.0] * 3
    other = torch.npu.Stream()
    with torch.npu.stream(other):
        torch.npu.graph_task_update_begin(other, group)
        _ = first * 5.0
        torch.npu.graph_task_update_end(other)
    assert result.tolist() == [3.0] * 3, "nothing is run"
    graph.replay()
    assert result.tolist() == [9.0] * 3
    assert (first * 7.0).tolist() == [14.0] * 3, "other calls are as before"


def test_the_update_that_the_documentation_shows() -> None:
    """The graph waits for an event; the call gets its numbers meanwhile."""
    event, x, graph = torch.npu.ExternalEvent(), torch.ones(4, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        y = x[:4].mul(3)
        group = torch.npu.graph_task_group_end(stream)
    side = torch.npu.Stream()
    for factor in (4, 5):
        graph.replay()
        with torch.npu.stream(side):
            torch.npu.graph_task_update_begin(side, group)
            _ = x[:4].mul(factor)
            torch.npu.graph_task_update_end(side)
            event.record(side)
        torch.npu.synchronize()
        assert y.tolist() == [float(factor)] * 4


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (lambda x: [], "has 1 tasks, but the update has 0"),
        (lambda x: [x * 2.0, x * 3.0], "got one more: aten::mul"),
        (lambda x: [x + 2.0], "got aten::add instead of aten::mul"),
        (lambda x: [x[:2] * 2.0], r"returns float\[2\], but the captured call returned float\[3\]"),
    ],
    ids=["none", "one more", "another", "another size"],
)
def test_an_update_that_does_not_fit(calls: Callable[[torch.Tensor], list[Any]], message: str) -> None:
    given = torch.ones(3, device="npu")
    graph, group, first, result = grouped(given)
    stream = torch.npu.current_stream()

    def update() -> None:
        torch.npu.graph_task_update_begin(stream, group)
        try:
            calls(first)
        finally:
            torch.npu.graph_task_update_end(stream)

    with pytest.raises(RuntimeError, match=message):
        update()
    graph.replay()
    assert result.tolist() == [3.0] * 3, "the graph is as before"


def test_groups_and_updates_out_of_place() -> None:
    graph, group, _, _ = grouped(torch.ones(3, device="npu"))
    stream = torch.npu.current_stream()
    with pytest.raises(RuntimeError, match="not being captured"):
        torch.npu.graph_task_group_begin(stream)
    with pytest.raises(RuntimeError, match="without graph_task_update_begin"):
        torch.npu.graph_task_update_end(stream)
    with pytest.raises(TypeError, match="graph_task_group_end"):
        torch.npu.graph_task_update_begin(stream, 3)
    graph.reset()
    with pytest.raises(RuntimeError, match="no longer exists"):
        torch.npu.graph_task_update_begin(stream, group)
    unfinished = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="no graph_task_group_end"), torch.npu.graph(unfinished):
        torch.npu.graph_task_group_begin(torch.npu.current_stream())


def test_a_group_of_several_calls() -> None:
    """Later ones read what earlier ones make, also of other types, which are copies."""
    x, graph = torch.ones(3, device="npu"), torch.npu.NPUGraph()

    def calls(factor: float) -> torch.Tensor:
        return ((x * factor).relu() + 1).to(torch.float64).softmax(0).sum(0) * factor

    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        y = calls(2.0)
        group = torch.npu.graph_task_group_end(stream)
        z = y + 1
    side = torch.npu.Stream()
    for factor in (5.0, 7.0):
        with torch.npu.stream(side):
            torch.npu.graph_task_update_begin(side, group)
            calls(factor)
            torch.npu.graph_task_update_end(side)
        graph.replay()
        assert y.item() == pytest.approx(factor)
        assert z.item() == pytest.approx(factor + 1)


def test_a_graph_that_is_reset_while_it_is_updated() -> None:
    given, stream = torch.ones(3, device="npu"), torch.npu.current_stream()
    graph, group, first, _ = grouped(given)
    torch.npu.graph_task_update_begin(stream, group)
    _ = first * 5.0
    graph.reset()
    with pytest.raises(RuntimeError, match="was reset during its update"):
        torch.npu.graph_task_update_end(stream)


def test_a_group_that_never_ends() -> None:
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        del graph
    assert torch.ones(3, device="npu").sum().item() == 3


def test_error_inside_task_group_is_raised() -> None:
    def fail() -> None:
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"), torch.npu.graph(torch.npu.NPUGraph()):
        fail()


def attention(lengths: list[int], q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.ops.npu.npu_fused_infer_attention_score(
        q, k, k, num_heads=2, input_layout="BSH", scale=0.25, actual_seq_lengths_kv=lengths
    )[0]


def test_lengths_of_a_graph_are_updated() -> None:
    """Calls that take lengths of the host are found while the graph is captured."""
    q, k = torch.randn(2, 1, 32, device="npu").half(), torch.randn(2, 16, 32, device="npu").half()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        first = attention([4, 7], q, k) + 1
        second = attention([16, 1], first - 1, k)
    for given in ([[4, 7], [16, 1]], [[9, 1], [2, 2]], [[16, 16], [3, 5]], [[8, 8]]):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths} for lengths in given])
        graph.replay()
        want = attention(given[0], q, k)
        torch.testing.assert_close(first.cpu(), (want + 1).cpu())
        torch.testing.assert_close(second.cpu(), attention(given[-1], first - 1, k).cpu())


def test_updates_that_do_not_fit() -> None:
    """Nothing is changed by them."""
    q, k = torch.randn(2, 1, 32, device="npu").half(), torch.randn(2, 16, 32, device="npu").half()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        made = attention([4, 7], q, k)
    for given, error, match in (
        ([{"lengths": [1, 1]}], RuntimeError, "unknown keys .*: lengths"),
        ([{}, {}], RuntimeError, "2 entries for 1 calls"),
        ("text", TypeError, "list of dictionaries"),
        ([{"actual_seq_lengths_kv": ["a"]}], RuntimeError, "actual_seq_lengths_kv"),
    ):
        with pytest.raises(error, match=match):
            graph.update(cpu_update_input=given)
        graph.update([{}])
        graph.replay()
        assert torch.equal(made.cpu(), attention([4, 7], q, k).cpu())


def test_updates_are_whole_or_not_at_all() -> None:
    q, k = torch.randn(2, 1, 32, device="npu").half(), torch.randn(2, 16, 32, device="npu").half()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        made = [attention([4, 7], q, k), attention([2, 3], q, k)]
    for second in ({"typo": [1, 1]}, {"actual_seq_lengths_kv": [1]}):
        with pytest.raises(RuntimeError):
            graph.update([{"actual_seq_lengths_kv": [16, 16]}, second])
        graph.replay()
        assert torch.equal(made[0].cpu(), attention([4, 7], q, k).cpu())
        assert torch.equal(made[1].cpu(), attention([2, 3], q, k).cpu())
    lengths = [9, 16]
    graph.update([{"actual_seq_lengths_kv": lengths}, {}])
    lengths[0] = 1  # the caller's own
    graph.update([{}])
    graph.replay()
    assert torch.equal(made[0].cpu(), attention([9, 16], q, k).cpu())


def test_a_graph_that_is_reset_while_it_is_captured() -> None:
    q, k = torch.randn(2, 1, 32, device="npu").half(), torch.randn(2, 16, 32, device="npu").half()
    graph = torch.npu.NPUGraph()
    with (
        pytest.raises(RuntimeError, match="capture_end"),
        torch.npu.graph(graph, auto_dispatch_capture=True),
    ):
        graph.reset()
    attention([4, 7], q, k)


def test_updates_of_a_graph_on_another_device() -> None:
    with torch.npu.device(1):
        q, k = torch.randn(2, 1, 32, device="npu").half(), torch.randn(2, 16, 32, device="npu").half()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, stream=torch.npu.Stream(), auto_dispatch_capture=True):
            made = attention([4, 7], q, k)
    graph.update([{"actual_seq_lengths_kv": [9, 16]}])
    with torch.npu.device(1):
        graph.replay()
        assert torch.equal(made.cpu(), attention([9, 16], q, k).cpu())


def test_handlers_of_users() -> None:
    seen: list[str] = []

    @torch.npu.register_npu_graph_handler(["mul.Scalar"])
    class Scaled(torch.npu.NpuGraphOpHandler):
        UPDATE_SPECS = {"mul.Scalar": [("arg", 1, "factor")]}

        @classmethod
        def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
            return args[1] != 7

        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            seen.append("prepare")
            return func, args, kwargs

        @classmethod
        def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
            seen.append("post")
            return result

    try:
        x = torch.arange(3.0, device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, auto_dispatch_capture=True):
            y = torch.ops.aten.mul.Scalar(torch.ops.aten.mul.Scalar(x, 2), 7)
        assert seen == ["prepare", "post"]
        graph.update([{"factor": 3}])
        graph.replay()
        assert y.tolist() == [0, 21, 42]
    finally:
        handlers._handlers.pop("mul.Scalar")
    with pytest.raises(TypeError, match="NpuGraphOpHandler"):
        torch.npu.register_npu_graph_handler("x")(int)
    with pytest.raises(TypeError, match="names"):
        torch.npu.register_npu_graph_handler([])
    with pytest.raises(ValueError, match="place"):
        torch.npu.register_npu_graph_handler("x")(
            type("Bad", (torch.npu.NpuGraphOpHandler,), {"UPDATE_SPECS": {"x": [("arg", "by", "by")]}})
        )
    with pytest.raises(ValueError, match="the handler is for x"):
        torch.npu.register_npu_graph_handler("x")(
            type("Bad", (torch.npu.NpuGraphOpHandler,), {"UPDATE_SPECS": {"y": []}})
        )
