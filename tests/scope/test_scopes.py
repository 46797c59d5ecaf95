"""Scopes around a part of a model: what they write into graphs and files, and do when graphs run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torchair
import torchair.npugraph_ex
from tests.support.compile import compile_fn, seen_with
from torchair.core.errors import DegradedWarning
from torchair.devices import get_device
from torchair.ge.graph import Op
from torchair.ge.proto import schema
from torchair.scope.super_kernel_options import options_of

X, Y = torch.randn(4, 4), torch.randn(4, 4)
scope, ops = torchair.scope, torchair.ops
MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
CODEGENS = pytest.mark.parametrize("codegen", ["eager", "inductor"])


def scoped(op: Op) -> dict[str, Any]:
    """The attributes that scopes gave an op."""
    known = ("_user_stream", "_enable_inner", "_super_kernel", "_op_", "torchair_enable", "_deterministic")
    return {key: attr.value for key, attr in op.attrs.items() if key.startswith(known)}


EXPECTED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "stream": (
        lambda: scope.npu_stream_switch("1", 3),
        {"_user_stream_label": "1", "_user_stream_priority": "3", "_enable_inner_parallel": True},
    ),
    "stream alone": (
        lambda: scope.npu_stream_switch("s", enable_inner_parallel=False),
        {"_user_stream_label": "s", "_user_stream_priority": "0", "_enable_inner_parallel": False},
    ),
    "kernel": (
        lambda: scope.super_kernel("sp", "feed-sync-all=1:stream-fusion=1"),
        {"_super_kernel_scope": "sp", "_super_kernel_options": "feed-sync-all=1:stream-fusion=1"},
    ),
    "cores": (lambda: scope.limit_core_num(8, 16), {"_op_aicore_num": "8", "_op_vectorcore_num": "16"}),
    "timeout": (lambda: scope.op_never_timeout(), {"_op_exec_never_timeout": True}),
    "no timeout": (lambda: scope.op_never_timeout(False), {"_op_exec_never_timeout": False}),
    "dump": (lambda: scope.data_dump(), {"torchair_enable_data_dump": "True"}),
    "deterministic": (
        lambda: torchair.npugraph_ex.scope.deterministic(2),
        {"_deterministic": "1", "_deterministic_level": "2"},
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_ops_inside_have_the_attributes(name: str) -> None:
    make, wanted = EXPECTED[name]

    def fn(x: torch.Tensor) -> torch.Tensor:
        with make():
            y = x.sin()
        return y.cos()

    seen = seen_with({}, fn, X)
    assert [scoped(op) for op in (*seen.ops("Sin"), *seen.ops("Cos"))] == [wanted, {}]


class InScope(torch.nn.Module):
    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.make():
            y = x.sin()
        return y.cos()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_protobuf_has_the_attributes_and_loading_keeps_them(name: str, tmp_path: Path) -> None:
    make, wanted = EXPECTED[name]
    torchair.dynamo_export(X, model=InScope(make), export_path=str(tmp_path), export_name="net")
    model = schema.message("ModelDef")
    model.ParseFromString((tmp_path / "net.air").read_bytes())
    (sine,) = [op for op in model.graph[0].op if op.type == "Sin"]
    found = {key: sine.attr[key] for key in wanted}
    assert {
        key: attr.b if isinstance(wanted[key], bool) else attr.s.decode() for key, attr in found.items()
    } == wanted
    assert {key: attr.WhichOneof("value") for key, attr in found.items()} == {
        key: "b" if isinstance(value, bool) else "s" for key, value in wanted.items()
    }
    loaded = torchair.load_air(tmp_path / "net.air")
    (kept,) = [op for op in loaded.graph.ops if op.type == "Sin"]
    assert scoped(kept) == wanted
    torch.testing.assert_close(loaded(X), X.sin().cos())


def test_the_inner_scope_wins_and_others_add_up() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.npu_stream_switch("outer"), scope.limit_core_num(8, 8):
            with scope.npu_stream_switch("inner", 2), scope.super_kernel("k"):
                x = x.sin()
                with scope.super_kernel(None):
                    x = x.tan()
            x = x.cos()
        return x

    seen = seen_with({}, fn, X)
    sine, tan, cosine = (scoped(seen.ops(name)[0]) for name in ("Sin", "Tan", "Cos"))
    cores = {"_op_aicore_num": "8", "_op_vectorcore_num": "8"}
    inner = {"_user_stream_label": "inner", "_user_stream_priority": "2", "_enable_inner_parallel": True}
    assert sine == {**cores, **inner, "_super_kernel_scope": "k", "_super_kernel_options": ""}
    assert tan == {**cores, **inner}
    assert cosine == {**cores, **inner, "_user_stream_label": "outer", "_user_stream_priority": "0"}


def all_scopes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with scope.npu_stream_switch("1", 3), scope.limit_core_num(8, 16), scope.op_never_timeout():
        a = x @ y
        done = ops.record()
    with scope.super_kernel("sp", ""), scope.data_dump():
        b = y.sin()
    ops.wait([done])
    scope.npu_wait_tensor(b, a)
    return a + b


class AllScopes(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return all_scopes(x, y)


def test_files_keep_them(tmp_path: Path) -> None:
    torchair.dynamo_export(X, Y, model=AllScopes(), export_path=str(tmp_path), export_name="net")
    graph = torchair.load_air(tmp_path / "net.air")
    torch.testing.assert_close(graph(X, Y), all_scopes_eagerly(X, Y))
    found = {op.type: scoped(op) for op in graph.graph.ops}
    assert found["MatMul"] == {
        "_user_stream_label": "1", "_user_stream_priority": "3", "_enable_inner_parallel": True,
        "_op_aicore_num": "8", "_op_vectorcore_num": "16", "_op_exec_never_timeout": True,
    }  # fmt: skip
    assert found["Sin"] == {
        "_super_kernel_scope": "sp", "_super_kernel_options": "", "torchair_enable_data_dump": "True",
    }  # fmt: skip
    (identity,) = [op for op in graph.graph.ops if op.type == "Identity"]
    assert [op.type for op in identity.after] == ["MatMul"]


def all_scopes_eagerly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y + y.sin()


@MODES
@CODEGENS
@pytest.mark.parametrize("dynamic", [False, True])
def test_both_modes_compute_the_same(mode: str, codegen: str, dynamic: bool) -> None:
    run = compile_fn(all_scopes, {"engine_config.codegen": codegen}, mode, fullgraph=True, dynamic=dynamic)
    torch.compiler.reset()
    for _ in range(3):
        torch.testing.assert_close(run(X, Y), all_scopes_eagerly(X, Y))


@MODES
def test_gradients_go_through(mode: str) -> None:
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    torch.compiler.reset()
    compile_fn(all_scopes, {}, mode, fullgraph=True)(x, y).square().sum().backward()
    found = (x.grad, y.grad)
    x.grad = y.grad = None
    all_scopes_eagerly(x, y).square().sum().backward()
    torch.testing.assert_close(found, (x.grad, y.grad))


@MODES
def test_a_scope_in_a_checkpoint(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHAIR_STRICT", raising=False)

    def part(x: torch.Tensor) -> torch.Tensor:
        with scope.limit_core_num(2, 2):
            return (x @ Y).sin()

    x = X.clone().requires_grad_()
    torch.compiler.reset()
    run = compile_fn(lambda x: checkpoint(part, x, use_reentrant=False), {}, mode, fullgraph=True)
    with pytest.warns(DegradedWarning, match=r"not recomputed.*scope_enter.*test_scopes\.py"):
        run(x).sum().backward()
    torch.testing.assert_close(x.grad, (X @ Y).cos() @ Y.T)


@MODES
def test_a_graph_break_in_a_scope_names_its_line(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.limit_core_num(2, 2):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

    torch.compiler.reset()
    with pytest.raises(Exception, match=r"never closed.*\n +at +\S*test_scopes\.py:\d+ +with scope\.limit"):
        compile_fn(fn, {}, mode)(X)


# Order in the IR


def test_a_wait_is_an_edge_to_the_next_op_of_its_stream() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with scope.npu_stream_switch("side"):
            a = x.sin()
            done = ops.record()
            b = x.cos()
        ops.wait([done])
        c = y.tan()
        with scope.npu_stream_switch("side"):
            ops.wait([c])
        with scope.npu_stream_switch("side"):
            d = y.exp()
        return a, b, c, d

    seen = seen_with({}, fn, X, Y)
    after = {op.type: [before.type for before in op.after] for op in seen.graphs[-1].ops}
    assert (after["Sin"], after["Cos"], after["Tan"], after["Exp"]) == ([], [], ["Sin"], ["Tan"])


def test_a_record_before_all_ops_waits_for_nothing() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.npu_stream_switch("side"):
            done = ops.record()
        ops.wait([done])
        return x.sin()

    assert seen_with({}, fn, X).ops("Sin")[0].after == []


def test_events_by_name_are_edges_too() -> None:
    event = ops.npu_create_tagged_event("scopes_edge")

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with scope.npu_stream_switch("side"):
            a = x.sin()
            ops.npu_tagged_event_record(event)
        ops.npu_tagged_event_wait(event)
        return a, x.cos()

    (cosine,) = seen_with({}, fn, X).ops("Cos")
    assert [op.type for op in cosine.after] == ["Sin"]


# Arguments


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: scope.npu_stream_switch(1), TypeError),
        (lambda: scope.npu_stream_switch("s", "high"), TypeError),
        (lambda: scope.npu_stream_switch("s", 0, 1), TypeError),
        (lambda: scope.op_never_timeout("yes"), TypeError),
        (lambda: scope.limit_core_num("8", 8), TypeError),
        (lambda: scope.limit_core_num(True, 8), TypeError),
        (lambda: scope.super_kernel(1), TypeError),
        (lambda: scope.super_kernel("s", "unknown=1"), ValueError),
        (lambda: scope.super_kernel("s", "stream-fusion"), ValueError),
        (lambda: scope.super_kernel("s", "stream-fusion=2"), ValueError),
        (lambda: scope.super_kernel("s", "strict-scope-check=maybe"), ValueError),
        (lambda: scope.super_kernel("s", "debug-aic-num=0"), ValueError),
        (lambda: scope.super_kernel("s", "debug-aic-num=2:debug-aiv-num=3"), ValueError),
        (lambda: scope.super_kernel("s", "dcci-after-kernel-end=,"), ValueError),
        (lambda: scope.super_kernel("s", "stream-fusion=1:stream-fusion=0"), ValueError),
        (lambda: torchair.npugraph_ex.scope.deterministic(4), ValueError),
        (lambda: torchair.npugraph_ex.scope.deterministic(True), ValueError),
        (lambda: torchair.npugraph_ex.scope.deterministic(1.0), ValueError),
        (lambda: scope.npu_wait_tensor(X, Y), NotImplementedError),
    ],
)
def test_what_is_refused(make: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_options_of_super_kernels() -> None:
    text = "feed-sync-all=1:dcci-after-kernel-end=Add,Mul:debug-aic-num=2:debug-aiv-num=4"
    assert options_of(text) == {
        "feed-sync-all": "1", "dcci-after-kernel-end": "Add,Mul", "debug-aic-num": "2", "debug-aiv-num": "4",
    }  # fmt: skip


# What they do when they run


def probes(seen: list[tuple[int, bool]]) -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.library.custom_op("torchair_tests::probe", mutates_args=())
    def probe(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()))
        return x.clone()

    probe.register_fake(torch.empty_like)
    torchair.register_fx_node_ge_converter(torch.ops.torchair_tests.probe.default)(
        lambda x: torchair.ge.custom_op("Probe", inputs={"x": x}, outputs=["y"])
    )
    return probe


@MODES
@CODEGENS
def test_cores_are_threads_and_levels_are_algorithms(mode: str, codegen: str) -> None:
    seen: list[tuple[int, bool]] = []
    probe, threads = probes(seen), torch.get_num_threads()

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = probe(x + 1)
        with scope.limit_core_num(1, 2):
            x = probe(x * 2)
            with torchair.npugraph_ex.scope.deterministic(1):
                x = probe(x * 2)
        return probe(x - 1)

    torch.compiler.reset()
    torch.set_num_threads(2)
    try:
        run = compile_fn(fn, {"engine_config.codegen": codegen}, mode, fullgraph=True)
        for _ in range(2):
            seen.clear()
            torch.testing.assert_close(run(X), (X + 1) * 4 - 1)
            assert seen == [(2, False), (1, False), (1, True), (2, False)]
    finally:
        torch.set_num_threads(threads)


@MODES
def test_unlimited_cores_warn(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of some devices cannot."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.limit_core_num(16, 16):
            return x.sin()

    monkeypatch.setattr(get_device(X.device), "limits_cores", False)
    with pytest.warns(DegradedWarning, match="core limit has no effect on this device"):
        torch.testing.assert_close(compile_fn(fn, {}, mode)(X), X.sin())


def test_outside_of_a_graph_limits_act_at_once() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torchair.npugraph_ex.scope.limit_core_num(1, 1), torchair.npugraph_ex.scope.deterministic(3):
            assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (1, True)
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, False)
    finally:
        torch.set_num_threads(threads)


def test_a_super_kernel_is_one_unit() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        with scope.super_kernel("block"):
            x = (x.cos() + 1).exp()
        return x.tan()

    torch.compiler.reset()
    seen = seen_with({"engine_config.codegen": "inductor"}, fn, X)
    assert seen.runner.program.source.count("piece") >= 3


def split_block(options: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.super_kernel("block", options):
            x = x.sin()
            with scope.limit_core_num(1, 1):
                x = x.cos()
            x = x.tan()
        return x

    return fn


def test_super_kernel_that_is_not_one_unit_warns() -> None:
    torch.compiler.reset()
    run = compile_fn(split_block(""), {"engine_config.codegen": "inductor"})
    with pytest.warns(DegradedWarning, match=r"super_kernel\('block'\) is 3 units"):
        torch.testing.assert_close(run(X), X.sin().cos().tan())


@pytest.mark.parametrize(
    "options",
    [
        {"engine_config.codegen": "inductor"},
        {"engine_config.codegen": "eager"},
        {"engine_config.compile_budget_s": 0},
    ],
    ids=["compiled", "eager", "nothing is built"],
)
def test_a_block_that_is_no_unit_is_refused_where_that_was_asked_for(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"super_kernel\('block'\) is 3 units"):
        compile_fn(split_block("strict-scope-check=abort"), options)(X)


# A wait that is missing


def test_race_check_on_cpu_warns() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with scope.npu_stream_switch("side"):
            a = x @ y
        return a + 1

    torch.compiler.reset()
    torch.testing.assert_close(compile_fn(fn, {}, "npugraph_ex")(X, Y), X @ Y + 1)
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.debug.deadlock_check = True
    run = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config))
    with pytest.warns(DegradedWarning) as told:
        torch.testing.assert_close(run(X, Y), X @ Y + 1)
    wanted = "a race between streams: mm (aten.mm.default) on stream 'side'"
    assert any(wanted in str(each.message) for each in told)


# Compiled pieces


def writes_behind(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with scope.limit_core_num(1, 1):
        made = x.sin()
    x.add_(y)
    x[0:1] = y[1:2]
    return made


def prints_alone(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with scope.limit_core_num(1, 1):
        made = x @ y
    with scope.super_kernel("talking"):
        ops.npu_print("seen", made.sum() * 0)
    return made


def sized_by_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with scope.limit_core_num(1, 1):
        made = (x + y).nonzero() * 2
    return made + 1


def one_name_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        with scope.super_kernel("attention", "strict-scope-check=abort"):
            x = (x @ y).relu()
        x = x + 1
    return x


def returned_token(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with scope.npu_stream_switch("side"):
        made = x @ y
        done = ops.record()
    ops.wait([done])
    return made, done


PIECES = [writes_behind, prints_alone, sized_by_data, one_name_twice, returned_token]


@MODES
@CODEGENS
@pytest.mark.parametrize("fn", PIECES, ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("ignore:output 0 has wrong strides")  # those of nonzero, and put right
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_pieces_do_what_the_whole_does(
    fn: Callable[..., Any], mode: str, codegen: str, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.compiler.reset()
    run = compile_fn(fn, {"engine_config.codegen": codegen}, mode)
    for _ in range(2):
        theirs, ours = X.clone(), X.clone()
        wanted = fn(theirs, Y)
        capfd.readouterr()
        torch.testing.assert_close(run(ours, Y), wanted)
        torch.testing.assert_close(ours, theirs)
        assert capfd.readouterr().out.count("seen") == (fn is prints_alone)


def test_core_limits_of_threads_are_restored() -> None:
    def limited() -> None:
        for _ in range(200):
            with torchair.npugraph_ex.scope.limit_core_num(1, 1), torchair.npugraph_ex.scope.deterministic(1):
                torch.ones(2).sum()

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(limited) for _ in range(4)]:
                done.result()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, False)
    finally:
        torch.set_num_threads(threads)
