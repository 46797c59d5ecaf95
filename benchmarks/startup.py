"""Suite `startup`: from `torch.compile` to the first result, in a fresh process, with a cold or a warm cache.

Run as `python -m benchmarks.startup MODEL COLUMN DEVICE`, this module is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.columns import BY_NAME as COLUMN_BY_NAME
from benchmarks.columns import chosen
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import BY_NAME, MODELS
from benchmarks.options import Options
from benchmarks.timing import wait
from torchair.core.tables import table

SUBJECTS = ("mlp", "llama-decode", "bert", "cnn", "llama-8b-decode")


def run(options: Options) -> report.Suite:
    """Start each model under each column twice: nothing cached, then everything."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    suite = report.Suite("startup", device)
    columns = [
        column for column in chosen(options.backends, device) if column.name not in ("eager", "dynamo")
    ]
    models = [m for m in MODELS if device in m.devices and (options.models or m.name in SUBJECTS)]
    for model in filter(lambda model: options.wants(model.name), models):
        figures = suite.figures[model.name] = {}
        for column in columns:
            report.console.print(f"startup: {model.name}, {column.title}")
            with tempfile.TemporaryDirectory() as caches:
                for heat in ("cold", "warm"):
                    try:
                        figures[f"{column.name}.{heat}"] = in_process(
                            model.name, column.name, device, Path(caches)
                        )
                    except RuntimeError as error:
                        suite.failures.append(f"{model.name}, {column.title}, {heat}: {error}")
    show(suite, {column.name: column.title for column in columns})
    return suite


def in_process(model: str, column: str, device: str, caches: Path) -> float:
    """Seconds to the first result in a process whose caches lie in `caches`."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "XDG_CACHE_HOME": str(caches),
    }
    command = [sys.executable, "-m", "benchmarks.startup", model, column, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return json.loads(done.stdout.strip().splitlines()[-1])["seconds"]


def show(suite: report.Suite, titles: dict[str, str]) -> None:
    def pair(figures: dict[str, float], name: str) -> str:
        return " / ".join(report.duration(figures.get(f"{name}.{state}")) for state in ("cold", "warm"))

    rows = [(model, *(pair(figures, name) for name in titles)) for model, figures in suite.figures.items()]
    title = f"startup on {suite.device}: torch.compile to first result, cold / warm cache"
    report.console.print(table(("model", *titles.values()), rows, figures=True, title=title))


def first_result(model_name: str, column_name: str, device: str) -> float:
    """Seconds from `torch.compile` to a first result that equals eager's."""
    model = BY_NAME[model_name]
    with torch.no_grad():
        module, feed = model.make(device), model.feed(device)
        want = snapshot(module(**feed))
        wait(device)
        start = time.perf_counter()
        result = COLUMN_BY_NAME[column_name].make(module, False)(**feed)
        wait(device)
        seconds = time.perf_counter() - start
    problem = why_unequal(snapshot(result), want, model.tolerance)
    if problem:
        raise RuntimeError(problem)
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": first_result(*sys.argv[1:4])}))
