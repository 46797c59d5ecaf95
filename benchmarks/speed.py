"""Suites `cpu` and `cuda`: every model, every column, in one process."""

from __future__ import annotations

import time
from functools import partial

import torch

from benchmarks import report
from benchmarks.columns import Column, chosen
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import MODELS, Model
from benchmarks.options import Options
from benchmarks.timing import Thunk, measure, wait


def run(device: str, options: Options) -> report.Suite:
    """Measure the chosen models on one device and print the tables."""
    suite = report.Suite(device, device)
    columns = chosen(options.backends, device)
    # One op measures a call, not a model: it belongs to the suite `overhead`, unless it is asked for.
    models = [
        model
        for model in MODELS
        if device in model.devices
        and options.wants(model.name)
        and (options.models or model.name != "one-op")
    ]
    # Convolutions in TF32 differ from each other by more than a result may differ from eager's.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for model in models:
            report.console.print(f"{device}: {model.name} ({model.about})")
            figures = suite.figures[model.name] = time_model(model, columns, device, options, suite.failures)
            # A run that is broken off has shown what it had.
            report.console.print("  " + ", ".join(f"{name} {s * 1e3:.3f} ms" for name, s in figures.items()))
    show(suite, columns)
    return suite


def time_model(
    model: Model, columns: list[Column], device: str, options: Options, failures: list[str]
) -> dict[str, float]:
    """Seconds per call of each column whose result equals eager's."""
    torch.compiler.reset()
    module, feed = model.make(device), model.feed(device)
    want = snapshot(module(**feed))
    calls: dict[str, Thunk] = {}
    for column in columns:
        try:
            began = time.perf_counter()
            call = partial(column.make(module, False), **feed)
            warm(call)
            wait(device)
            ready = time.perf_counter() - began
            column.settle()
            settled = time.perf_counter() - began
            problem = why_unequal(warm(call), want, model.tolerance)
            later = f", settled after {settled:.2f} s" if settled - ready > 0.1 else ""
            report.console.print(f"  {column.title}: ready in {ready:.2f} s{later}")
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            calls[column.name] = call
        else:
            failures.append(f"{model.name}, {column.title}: {problem}")
            report.console.print(f"  {column.title} is left out: {problem}", markup=False)
    return measure(calls, device, options.rounds, options.sample_seconds)


def warm(call: Thunk) -> list[torch.Tensor]:
    """Call until compiled, recorded and replayed; the last result counts."""
    for _ in range(3):
        result = call()
    return snapshot(result)


def show(suite: report.Suite, columns: list[Column]) -> None:
    """Times, then speed against stock, against eager, and of a file against the model that it is of."""
    titles = {column.name: column.title for column in columns}
    caption = "Dynamo alone: guards and call only, nothing computed; every compiled column includes it."
    report.console.print(report.time_table(suite, titles, caption))
    compared = [name for name in titles if name not in ("eager", "dynamo")]
    for base, against in (("stock", compared), ("eager", compared), ("graph", ["loaded"])):
        others = [name for name in against if name != base and name in titles]
        if base in titles and others:
            report.console.print(report.ratio_table(suite, titles, base, others))
