"""Higher-order ops through both modes: control flow as IR, calls inlined, short loops unrolled, the rest
carried through. Results are eager's.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair import ge
from torchair.backend.pipeline.context import Context
from torchair.backend.pipeline.ir import convert_to_ir, lower_to_aten, pass_context
from torchair.backend.pipeline.plan import new_context
from torchair.backend.settings.settings import Settings
from torchair.convert.base.registry import unregister
from torchair.convert.base.report import ConversionReport
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.compilers.aot_autograd import aot_autograd
from torchair.engine.interpret import interpret
from torchair.fxgraph.layout import layouts_of
from torchair.ge.files.text import from_python, to_python
from torchair.ge.files.verify import verify
from torchair.ge.graph import Graph
from torchair.ge.proto.equality import same_graph
from torchair.ge.proto.read import from_model
from torchair.ge.proto.write import to_bytes

Fn = Callable[..., Any]
CPU = torch.device("cpu")


def branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x.sin() + 1, x.sum(0)), lambda x: (x.cos(), x[0] * 2), (x,))


def loop(x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1), (torch.tensor(0), x))


def loop_that_reads(x: torch.Tensor) -> Any:
    rows = x.abs().cumsum(1)

    def step(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, y + rows * i

    return while_loop(lambda i, y: y.sum() < 1e3, step, (torch.tensor(0), x.abs()))


def branch_in_a_loop(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, torch.cond(i % 2 == 0, lambda y: y + 1, lambda y: y * 2, (y,))

    return while_loop(lambda i, y: i < 4, step, (torch.tensor(0), x))


def loop_in_a_branch(x: torch.Tensor) -> Any:
    def run(x: torch.Tensor) -> Any:
        return while_loop(lambda y: y.sum() < 100, lambda y: (y * 2 + 1,), (x.abs(),))[0]

    return torch.cond(x.shape[0] > 5, run, lambda x: x - 1, (x,)) + torch.cond(
        x.mean() > 0, run, lambda x: x.clone(), (x,)
    )


def loop_from_a_size(x: torch.Tensor) -> Any:
    """What is carried begins as a size, and is data."""
    start = torch.full((), x.shape[0])
    return while_loop(lambda i, y: i > 0, lambda i, y: (i - 1, y + i), (start, x))


def strided(x: torch.Tensor) -> Any:
    """The operand is a view with other strides than its value has in the IR."""
    return torch.cond(x.max() > 0, lambda y: y * 2, lambda y: y + 1, (x.t(),))


def mapped(x: torch.Tensor) -> Any:
    return map_rows(lambda row, y: row.sin() + y, x, x.sum(0))


def scanned(x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros_like(x[0]), x)


def long_scan(x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros_like(x[0]), x.repeat(5, 1))


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def regions(x: torch.Tensor) -> Any:
    return region(region(x))


def wide(x: torch.Tensor) -> Any:
    a = (x * 9).to(torch.int8)
    return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, a, a.t())


def recomputed(x: torch.Tensor) -> Any:
    return checkpoint(lambda x: torch.sin(x) * 2, x, use_reentrant=False)


def attention(x: torch.Tensor) -> Any:
    q = x.reshape(1, 2, -1, 8)
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j))


@torch.library.custom_op("torchair_test::add_into", mutates_args=("x",))
def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("torchair_test::count_up", mutates_args=("x",))
def count_up(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@count_up.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def writes(x: torch.Tensor) -> Any:
    y = x.clone()
    add_into(y, x)
    return y * 2


def writes_into_a_part(x: torch.Tensor) -> Any:
    y = x.clone()
    z = count_up(y[1:3])
    return y + 1, z


# What becomes of each: IR ops that must be there, and the ops that are carried through.
CASES: dict[str, tuple[Fn, set[str], set[str]]] = {
    "branch": (branch, {"If"}, set()),
    "loop": (loop, {"While"}, set()),
    "loop_that_reads": (loop_that_reads, {"While"}, set()),
    "branch_in_a_loop": (branch_in_a_loop, {"While", "If"}, set()),
    "loop_in_a_branch": (loop_in_a_branch, {"While", "If"}, set()),
    "loop_from_a_size": (loop_from_a_size, {"While"}, set()),
    "strided": (strided, {"If"}, set()),
    "map": (mapped, {"Sin"}, set()),
    "scan": (scanned, {"Mul"}, set()),
    "long_scan": (long_scan, set(), {"scan"}),
    "regions": (regions, {"Sin"}, set()),
    "out_dtype": (wide, set(), set()),
    "checkpoint": (recomputed, {"Sin"}, set()),
    "flex_attention": (attention, set(), {"flex_attention"}),
    "auto_functionalized": (writes, set(), {"auto_functionalized_v2"}),
    "auto_functionalized_part": (writes_into_a_part, set(), {"auto_functionalized_v2"}),
}


# Loops over as many rows as a symbol says are not unrolled.
DYNAMIC = {"map": (mapped, set(), {"map_impl"}), "scan": (scanned, set(), {"scan"})}


def backend(mode: str, codegen: str) -> Any:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    return torchair.get_npu_backend(compiler_config=config)


def sample(rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))


def graph_of(fn: Fn, dynamic: bool = False) -> tuple[Graph, ConversionReport, Context, Any, list[Any]]:
    """The IR of the graph that Dynamo and AOTAutograd make, and the flat arguments of a call."""
    found: list[Any] = []

    def keep(gm: Any, inputs: Any) -> Any:
        copied, ctx = new_context(gm, inputs, Settings.of({}))
        graph, report = convert_to_ir(copied, ctx, layouts_of(copied), pass_context(ctx))
        found.extend([graph, report, ctx, copied])

        def run(args: list[Any]) -> Any:
            found.append(list(args))
            return gm(*args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=aot_autograd(fw_compiler=keep), dynamic=dynamic, fullgraph=True)(sample())
    return tuple(found[:5])  # type: ignore[return-value]


def types(graph: Graph) -> set[str]:
    return {op.type for part in (graph, *graph.subgraphs.values()) for op in part.ops}


@pytest.mark.parametrize("dynamic", [slow(False), True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_eager(name: str, dynamic: bool) -> None:
    fn, wanted, carried = (CASES | DYNAMIC if dynamic else CASES)[name]
    graph, report, ctx, gm, args = graph_of(fn, dynamic)
    verify(graph)
    assert wanted <= types(graph)
    assert {reason.op for reason in report.fallbacks} == carried
    with torch.no_grad():
        expected = gm(*args)
        lowered = lower_to_aten(graph, gm, ctx)
        torch.testing.assert_close(interpret(graph, args, CPU), list(expected))
        torch.testing.assert_close(list(lowered(*args)), list(expected))
        run = compile_fn(fn, dynamic=dynamic, fullgraph=True, reset=True)
        with pytest.warns(DegradedWarning, match="carried through") if carried else contextlib.nullcontext():
            run(sample(4))
        with warnings.catch_warnings():
            # Static, another size is another graph, with the same ops.
            warnings.filterwarnings("ignore", ".*carried through", DegradedWarning)
            for rows in (4, 6):
                torch.testing.assert_close(run(sample(rows)), fn(sample(rows)))


# Here no IR tells the cases apart.
CAPTURED = ("branch_in_a_loop", "loop_that_reads", "scan", "checkpoint", "auto_functionalized_part")


@pytest.mark.parametrize("name", [name if name in CAPTURED else slow(name) for name in CASES])
def test_capture_mode(name: str) -> None:
    fn = CASES[name][0]
    run = compile_fn(fn, mode="npugraph_ex", dynamic=True, fullgraph=True, reset=True)
    with torch.no_grad():
        for rows in (4, 6, 4):
            torch.testing.assert_close(run(sample(rows)), fn(sample(rows)))


@pytest.mark.parametrize("name", [slow("branch"), "loop_that_reads"])
def test_inductor(name: str) -> None:
    fn = CASES[name][0]
    run = compile_fn(fn, codegen="inductor", dynamic=True, fullgraph=True, reset=True)
    with torch.no_grad():
        for x in (sample(4), -sample(4).abs(), sample(6)):
            torch.testing.assert_close(run(x), fn(x))


def test_both_branches_are_taken() -> None:
    run = compile_fn(branch, dynamic=False, fullgraph=True, reset=True)
    for x in (torch.ones(4, 8), -torch.ones(4, 8)):
        torch.testing.assert_close(run(x), branch(x))


def test_gradients_through_a_branch() -> None:
    x = sample().requires_grad_()
    run = compile_fn(
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * x, (x,)).sum(),
        dynamic=False,
        fullgraph=True,
        reset=True,
    )
    for value in (sample(), sample() - 9):
        with torch.no_grad():
            x.copy_(value)
        (grad,) = torch.autograd.grad(run(x), x)
        torch.testing.assert_close(grad, value.cos() if value.sum() > 0 else 2 * value)


def test_what_a_loop_does_not_change_stays_outside_of_its_results() -> None:
    graph, _, ctx, gm, _ = graph_of(loop_that_reads)
    (op,) = [op for op in graph.ops if op.type == "While"]
    assert len(op.outputs) == len(op.inputs) == 3
    condition, body = [graph.subgraphs[name] for name in op.subgraphs]
    assert [len(part.inputs) for part in (condition, body)] == [3, 3]
    assert len(body.output.slots) == 3  # type: ignore[union-attr]
    (node,) = [node for node in lower_to_aten(graph, gm, ctx).graph.nodes if str(node.target) == "while_loop"]
    assert [len(part) for part in node.args[2:]] == [2, 1]


@pytest.mark.parametrize("name", ["branch", "loop", "branch_in_a_loop"])
@pytest.mark.parametrize("way", ["wire", "text"])
def test_a_graph_with_sub_graphs_survives(name: str, way: str) -> None:
    graph, _, _, gm, args = graph_of(CASES[name][0])
    ways: dict[str, Callable[[Graph], Graph]] = {
        "wire": lambda graph: from_model(to_bytes(graph, runtime=True)),
        "text": lambda graph: from_python(to_python(graph, limit=None)),
    }
    back = ways[way](graph)
    assert same_graph(graph, back, descriptors=False) is None
    torch.testing.assert_close(interpret(back, args, CPU), list(gm(*args)))


def test_a_branch_that_draws_numbers_is_carried_through() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x + 1, (x,))

    graph, report, *_ = graph_of(fn)
    assert not graph.subgraphs
    (reason,) = report.fallbacks
    assert reason.op == "cond"
    assert "random numbers" in reason.why
    run = compile_fn(fn, dynamic=False, fullgraph=True, reset=True)
    torch.manual_seed(1)
    with pytest.warns(DegradedWarning, match="cond .*random numbers"):
        got = run(torch.ones(4, 8))
    torch.manual_seed(1)
    torch.testing.assert_close(got, fn(torch.ones(4, 8)))


def test_a_written_argument_through_the_ops_own_converter() -> None:
    target = torch.ops.torchair_test.add_into.default

    @torchair.register_fx_node_ge_converter(target)
    def convert(x: Any, y: Any) -> Any:
        return ge.InplaceIndexAdd(x, list(range(4)), y, axis=0)

    try:
        graph, report, _, gm, args = graph_of(writes)
    finally:
        unregister(target)
    assert {"InplaceIndexAdd", "TensorMove"} <= types(graph)
    assert not report.fallbacks
    torch.testing.assert_close(interpret(graph, args, CPU), list(gm(*args)))
    torch.testing.assert_close(interpret(graph, args, CPU), [args[0] * 4])


def test_dropout_that_is_recomputed_in_backward() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: torch.dropout(x, 0.5, True).sin(), x, use_reentrant=False)

    x = (sample().abs() + 0.1).requires_grad_()
    run = compile_fn(fn, dynamic=False, fullgraph=True, reset=True)
    with pytest.warns(DegradedWarning, match="run_and_save_rng_state"):
        y = run(x)
    with pytest.warns(DegradedWarning, match="run_with_rng_state"):
        (grad,) = torch.autograd.grad(y.sum(), x)
    assert 0 < (y == 0).sum() < y.numel()
    assert torch.equal(grad == 0, y == 0)


def test_associative_scan() -> None:
    def fn(x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    torch.testing.assert_close(
        compile_fn(fn, dynamic=False, fullgraph=True, reset=True)(sample()), sample().cumsum(0)
    )
