"""Suite `overhead`: host time per call where the computing is next to nothing.

Each compiled column is measured twice: through `torch.compile`, and direct, as Dynamo calls what the backend
returned. The difference is Dynamo's share; what direct has over a raw graph launch is the backend's. On a GPU
each is measured as a loop calls that looks at every result, and in a row, as one calls that never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._dynamo import lookup_backend
from torch._inductor.compile_fx import compile_fx

import torchair
from benchmarks import report
from benchmarks.columns import Call, air_backend, only_dynamo, own_copy
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import BY_NAME, Inputs, Model
from benchmarks.options import Options
from benchmarks.speed import warm
from benchmarks.timing import Thunk, host_seconds, measure, row_seconds, step_seconds
from torchair.core.text_table import table

SUBJECTS = {"cpu": ("mlp", "one-op"), "cuda": ("decoder32", "mlp", "one-op")}
DIRECT = ".direct"
ROW = ".row"
WAYS = {"": "torch.compile", ROW: "in a row", DIRECT: "direct", DIRECT + ROW: "direct in a row"}
TRUST = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}


class Kept:
    """A backend around a backend that keeps what it returned."""

    def __init__(self, backend: Call) -> None:
        self.backend = backend
        self.compiled: Call | None = None

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> Call:
        assert self.compiled is None, "the models here are one graph"
        self.compiled = self.backend(gm, inputs)
        return self.compiled


def reaching(module: nn.Module, feed: Inputs) -> tuple[Any, ...]:
    """The arguments with which Dynamo calls what a backend returns: inputs, parameters, buffers."""
    seen: list[tuple[Any, ...]] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Call:
        def run(*args: Any) -> Any:
            seen.append(args)
            return gm(*args)

        return run

    torch.compile(own_copy(module), backend=backend, dynamic=False)(**feed)
    return seen[0]


def reduce_overhead(gm: fx.GraphModule, inputs: list[Any]) -> Call:
    return compile_fx(gm, inputs, config_patches={"triton.cudagraphs": True})


def frozen() -> Call:
    """Capture mode that does not compare the addresses of parameters."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.experimental_config.frozen_parameter = True
    return torchair.get_npu_backend(compiler_config=config)


class Backend(NamedTuple):
    """One row of the tables, and how it is compiled."""

    title: str
    make: Callable[[], Call]
    devices: tuple[str, ...] = ("cpu", "cuda")
    options: dict[str, Any] = {}


BACKENDS = {
    "dynamo": Backend("Dynamo alone", lambda: only_dynamo),
    "stock": Backend("torch.compile", lambda: lookup_backend("inductor")),
    "reduce": Backend("reduce-overhead", lambda: reduce_overhead, ("cuda",)),
    "graph": Backend("graph mode", lambda: air_backend("max-autotune")),
    "native": Backend("graph, native", lambda: air_backend("max-autotune", "native")),
    "capture": Backend("capture mode", lambda: air_backend("npugraph_ex")),
    "frozen": Backend("capture, frozen_parameter", frozen, ("cuda",)),
    "reduce-trusting": Backend(
        "reduce-overhead, modules not guarded", lambda: reduce_overhead, ("cuda",), TRUST
    ),
    "frozen-trusting": Backend("capture, frozen, modules not guarded", frozen, ("cuda",), TRUST),
}


def run(options: Options) -> report.Suite:
    """Host time per call on the best device here."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    suite = report.Suite("overhead", device)
    for name in SUBJECTS[device]:
        if options.wants(name):
            report.console.print(f"overhead: {name} ({BY_NAME[name].about})")
            with torch.no_grad():
                suite.figures[name] = time_model(BY_NAME[name], device, options, suite.failures)
    show(suite)
    return suite


def time_model(model: Model, device: str, options: Options, failures: list[str]) -> dict[str, float]:
    torch.compiler.reset()
    module, feed = model.make(device), model.feed(device)
    want = snapshot(module(**feed))
    calls: dict[str, Thunk] = {"eager": partial(module, **feed)}
    if device == "cuda":
        calls["launch"] = raw_graph(module, feed)
        calls["filled"] = with_copies(calls["launch"], feed)
    args = reaching(module, feed)
    for name, backend in BACKENDS.items():
        if device not in backend.devices or (options.backends and name not in options.backends):
            continue
        try:
            pair = compiled_and_direct(module, feed, args, backend)
            problem = next(filter(None, (why_unequal(warm(call), want) for call in pair)), None)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            failures.append(f"{model.name}, {backend.title}: {problem}")
            continue
        calls[name], calls[name + DIRECT] = pair
    timed = partial(measure, calls, device, options.rounds, options.sample_seconds)
    if device == "cpu":
        return timed(step_seconds)
    return timed(host_seconds) | {name + ROW: seconds for name, seconds in timed(row_seconds).items()}


def compiled_and_direct(
    module: nn.Module, feed: Inputs, args: tuple[Any, ...], backend: Backend
) -> tuple[Thunk, Thunk]:
    """One compiled graph, called through `torch.compile` and without Dynamo."""
    kept = Kept(backend.make())
    options = dict(backend.options)  # torch.compile takes its own out of it
    compiled = partial(torch.compile(own_copy(module), backend=kept, dynamic=False, options=options), **feed)
    compiled()
    assert kept.compiled is not None, "the first call compiles"
    return compiled, partial(kept.compiled, *args)


def with_copies(launch: Thunk, feed: Inputs) -> Thunk:
    """The launch after the inputs were copied to where a graph reads them, as every call has to."""
    sources = list(feed.values())
    buffers = [torch.empty_like(source) for source in sources]

    def call() -> None:
        torch._foreach_copy_(buffers, sources, non_blocking=True)
        launch()

    return call


def raw_graph(module: nn.Module, feed: Inputs) -> Thunk:
    """Eager kernels in one CUDA graph: the floor for a launch from Python."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(**feed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(**feed)
    return graph.replay


def show(suite: report.Suite) -> None:
    """One table per model: a row for each backend, a column for each way to call it."""
    plain = {"eager": "eager", "launch": "CUDA graph launch", "filled": "inputs copied, launch"}
    titles = plain | {name: backend.title for name, backend in BACKENDS.items()}
    for model, figures in suite.figures.items():
        ways = [way for way in WAYS if any(name + way in figures for name in titles)]
        rows = [
            (title, *(report.duration(figures.get(name + way)) for way in ways))
            for name, title in titles.items()
            if any(name + way in figures for way in ways)
        ]
        title = f"{suite.name} on {suite.device}: host time per call of {model}"
        columns = ("how", *(WAYS[way] for way in ways))
        report.console.print(table(columns, rows, figures=True, title=title))
