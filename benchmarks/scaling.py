"""Suite `scaling`: how the compile-time stages grow with the graph, codegen left out, on one core.

Graphs of repeated decoder layers, with constant and with symbolic sizes, in seconds of processor time. Fails
when the largest takes longer than its bound, or when a node of it costs more than a node of the smallest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from benchmarks import report
from benchmarks.options import Options
from torchair.backend.pipeline.ir import convert_to_ir, lower_to_aten, pass_context
from torchair.backend.pipeline.plan import new_context
from torchair.backend.settings.settings import resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.base.report import ConversionReport
from torchair.core.text_table import table
from torchair.fxgraph.layout import layouts_of
from torchair.passes import FX_PASSES
from torchair.passes import run as run_passes

SIZES = (1_000, 3_000, 10_000)
BOUND = 20.0
# Two runs of one graph on a busy machine differ by this much without any growth.
GROWTH = 1.3
STAGES = {"passes": "FX passes", "convert": "convert", "lower": "lower"}

WIDTH, HEADS, LENGTH = 32, 4, 6


def layer(
    x: Tensor, norm1: Tensor, qkv: Tensor, out: Tensor, norm2: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """One decoder layer, written out: norms, attention, a gated MLP, two residuals."""
    batch, length = x.shape[0], x.shape[1]
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * norm1
    q, k, v = (y @ qkv).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
    scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH) @ out
    x = x + y
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * norm2
    gate, rest = (y @ up).chunk(2, -1)
    return x + (F.silu(gate) * rest) @ down


def weights() -> list[Tensor]:
    shapes = ((WIDTH,), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 4 * WIDTH), (2 * WIDTH, WIDTH))
    return [torch.randn(shape) for shape in shapes]


def deep_graph(nodes: int, dynamic: bool) -> tuple[fx.GraphModule, list[Any]]:
    """A graph of at least `nodes` nodes and its fake inputs: one traced layer, as often as it takes."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    x = torch.randn(2, LENGTH, WIDTH)
    x_fake = fake_mode.from_tensor(x, static_shapes=not dynamic)
    with fake_mode, torch.no_grad():
        traced = make_fx(layer, tracing_mode="real", _allow_non_fake_inputs=True)(
            x_fake, *(fake_mode.from_tensor(weight, static_shapes=True) for weight in weights())
        )
    calls = [node for node in traced.graph.nodes if node.op == "call_function"]
    parameters = [node for node in traced.graph.nodes if node.op == "placeholder"][1:]
    repeats = -(-nodes // (len(calls) + len(parameters)))
    graph, inputs = fx.Graph(), [x_fake]
    previous = graph.placeholder("x")
    feeds = [
        [graph.placeholder(f"{parameter.name}_{count}") for parameter in parameters]
        for count in range(repeats)
    ]
    for fed in feeds:
        inputs += [fake_mode.from_tensor(weight, static_shapes=True) for weight in weights()]
        mapped = dict(zip(traced.graph.nodes, [previous, *fed], strict=False))
        for node in calls:
            mapped[node] = graph.node_copy(node, lambda old, mapped=mapped: mapped[old])
            mapped[node].meta = {"stack_trace": None}
        previous = mapped[traced.graph.output_node().args[0]]
    graph.output((previous,))
    return fx.GraphModule(torch.nn.Module(), graph), inputs


@contextmanager
def one_core() -> Iterator[None]:
    """torch's own threads are off: the bound is for one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stages(nodes: int, dynamic: bool) -> tuple[int, dict[str, float]]:
    """How many nodes the graph really had, and the seconds of each stage."""
    gm, inputs = deep_graph(nodes, dynamic)
    gm, ctx = new_context(gm, inputs, resolve_settings(CompilerConfig()))
    count, figures = len(gm.graph.nodes), dict.fromkeys(STAGES, 0.0)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        made = work()
        figures[name] = time.process_time() - began
        return made

    context = pass_context(ctx)
    timed("passes", lambda: run_passes(FX_PASSES, gm, context))
    graph, converted = timed("convert", lambda: convert_to_ir(gm, ctx, layouts_of(gm), context))
    timed("lower", lambda: lower_to_aten(graph, gm, ctx))
    assert_converted(converted)
    return count, figures


def assert_converted(converted: ConversionReport) -> None:
    """A graph that is carried through as it is would be quick, and tell nothing."""
    assert not converted.fallbacks, f"not converted: {converted.fallbacks[0]}"


def run(options: Options) -> report.Suite:
    """Measure each size with constant and with symbolic sizes."""
    suite = report.Suite("scaling", "cpu")
    sizes = SIZES if options.rounds > 5 else SIZES[:2]
    per_node: dict[str, float] = {}
    with one_core():
        stages(200, False)
        for dynamic in (False, True):
            for size in sizes:
                name = f"{size} nodes, {'symbolic' if dynamic else 'constant'} sizes"
                report.console.print(f"scaling: {name}")
                count, figures = stages(size, dynamic)
                total = sum(figures.values())
                suite.figures[name] = figures | {"total": total, "per_node": total / count}
                per_node[name] = total / count
                suite.failures += why_slow(name, total, per_node)
    show(suite)
    return suite


def why_slow(name: str, total: float, per_node: dict[str, float]) -> list[str]:
    """What is wrong with a figure, in words."""
    kind = name.partition(", ")[2]
    smallest = next(value for other, value in per_node.items() if other.endswith(kind))
    wrong = []
    if total > BOUND:
        wrong.append(f"{name}: {total:.1f} s, the bound is {BOUND:.0f} s")
    if per_node[name] > GROWTH * smallest:
        ours, theirs = per_node[name] * 1e6, smallest * 1e6
        wrong.append(f"{name}: {ours:.0f} µs a node, {theirs:.0f} µs in a small graph")
    return wrong


def show(suite: report.Suite) -> None:
    rows = [
        (
            name,
            *(report.duration(figures[stage]) for stage in (*STAGES, "total")),
            f"{figures['per_node'] * 1e6:.0f} µs",
        )
        for name, figures in suite.figures.items()
    ]
    columns = ("graph", *STAGES.values(), "total", "per node")
    title = "scaling: compile stages without codegen, one core"
    report.console.print(table(columns, rows, figures=True, title=title))
