"""Suite `streams`: two chains of products that do not need each other, one after the other, on two labelled
streams, and kept to some of the SMs. Needs a GPU.

Beside the time per call stands what the profiler saw: how much of the time two kernels ran at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch

import torchair
from benchmarks import report
from benchmarks.columns import air_backend
from benchmarks.equality import why_unequal
from benchmarks.options import Options
from benchmarks.speed import warm
from benchmarks.timing import Thunk, measure
from torchair.core.text_table import table

SIZE, LINKS = 512, 48
LIMIT = 16
BOUND = 0.7
"""Two streams are to take less than this part of the time of one."""
Pair = tuple[torch.Tensor, torch.Tensor]
scope, ops = torchair.scope, torchair.ops


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(LINKS):
        x = torch.tanh(x @ w)
    return x


def one(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Pair:
    return chain(x, w), chain(y, w)


def two(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Pair:
    with scope.npu_stream_switch("left"):
        a = chain(x, w)
        left = ops.record()
    with scope.npu_stream_switch("right"):
        b = chain(y, w)
        right = ops.record()
    ops.wait([left, right])
    return a, b


def limited(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Pair:
    with scope.limit_core_num(LIMIT, LIMIT):
        return chain(x, w), chain(y, w)


PROGRAMS = {"one": one, "two": two, "limited": limited}
MODES = {"graph mode": "max-autotune", "capture mode": "npugraph_ex"}


def run(options: Options) -> report.Suite:
    """Time per call, and how much of it two kernels share."""
    suite, shares = report.Suite("streams", "cuda"), dict[str, float]()
    feed = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) / SIZE**0.5 for _ in range(3)]
    for title, mode in MODES.items():
        for codegen in ("eager", "inductor"):
            name = f"{title}, {codegen}"
            with torch.no_grad():
                calls = {key: compiled(fn, mode, codegen, feed) for key, fn in PROGRAMS.items()}
                want = warm(calls["one"])
                problems = [why_unequal(warm(call), want) for call in calls.values()]
                suite.failures += [f"{name}: {problem}" for problem in problems if problem]
                figures = measure(calls, "cuda", options.rounds, options.sample_seconds)
                shares[name] = share_at_once(calls["two"])
            suite.figures[name] = figures
            if figures["two"] >= BOUND * figures["one"]:
                suite.failures.append(f"{name}: {figures['two'] / figures['one']:.2f} of one stream")
    columns = ("how", "one stream", "two streams", "of one", "at once", f"{LIMIT} SMs")
    rows = [
        (
            name,
            *(report.duration(figures[key]) for key in ("one", "two")),
            f"{figures['two'] / figures['one']:.2f}",
            f"{shares[name]:.0%}",
            report.duration(figures["limited"]),
        )
        for name, figures in suite.figures.items()
    ]
    title = f"streams: two chains of {LINKS} products of {SIZE} x {SIZE}"
    report.console.print(table(columns, rows, figures=True, title=title))
    return suite


def compiled(fn: Callable[..., Pair], mode: str, codegen: str, feed: list[torch.Tensor]) -> Thunk:
    torch.compiler.reset()
    return partial(
        torch.compile(fn, backend=air_backend(mode, codegen), dynamic=False, fullgraph=True), *feed
    )


def share_at_once(call: Thunk) -> float:
    """How much of the time in which any kernel ran two of them did."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            call()
            torch.cuda.synchronize()
    spans = [
        event.time_range for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    borders = sorted({border for span in spans for border in (span.start, span.end)})
    busy = shared = 0.0
    for start, end in pairwise(borders):
        running = sum(span.start <= start and end <= span.end for span in spans)
        busy += (end - start) * (running > 0)
        shared += (end - start) * (running > 1)
    return shared / busy if busy else 0.0
