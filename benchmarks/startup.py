"""Suite `startup`: from `torch.compile` to the first result, in fresh processes.

Cold: nothing is cached. Swap: seconds until the better program is there, which is built in the background.
Warm: a second process. Import: what `import torchair` adds to `import torch`.

Run as `python -m benchmarks.startup MODEL COLUMN DEVICE`, this module is such a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks import report
from benchmarks.columns import BY_NAME as COLUMN_BY_NAME
from benchmarks.columns import COLUMNS, KEPT, UNCOMPILED, Column, chosen
from benchmarks.equality import snapshot, why_unequal
from benchmarks.models import BY_NAME, MODELS
from benchmarks.options import Options
from benchmarks.timing import wait
from torchair.core.text_table import table

SUBJECTS = ("mlp", "llama-decode", "bert", "cnn", "llama-8b-decode")
IMPORTS = 5
"""Processes that import torch, and then torchair."""


def run(options: Options) -> report.Suite:
    """Start each model under each column twice: nothing cached, then everything."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    suite = report.Suite("startup", device)
    compared = chosen(options.backends, device, (*COLUMNS, *KEPT))
    columns = [UNCOMPILED, *(column for column in compared if column.name not in ("eager", "dynamo"))]
    models = [m for m in MODELS if device in m.devices and (options.models or m.name in SUBJECTS)]
    for model in filter(lambda model: options.wants(model.name), models):
        figures = suite.figures[model.name] = {}
        for column in columns:
            report.console.print(f"startup: {model.name}, {column.title}")
            with tempfile.TemporaryDirectory() as caches:
                for heat in ("cold", "warm"):
                    try:
                        made = in_process(model.name, column.name, device, Path(caches))
                    except RuntimeError as error:
                        suite.failures.append(f"{model.name}, {column.title}, {heat}: {error}")
                        continue
                    figures[f"{column.name}.{heat}"] = made["seconds"]
                    if heat == "cold" and column.ours:
                        figures[f"{column.name}.swap"] = made["swap"]
        show(model.name, figures, device, columns)
    suite.figures["import torchair"] = {"import": imported()}
    added = report.duration(suite.figures["import torchair"]["import"])
    report.console.print(f"import torchair adds {added} to import torch")
    return suite


def in_process(model: str, column: str, device: str, caches: Path) -> dict[str, float]:
    """Seconds to the first result, and to the better program, in a process whose caches lie in `caches`."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "XDG_CACHE_HOME": str(caches),
    }
    command = [sys.executable, "-m", "benchmarks.startup", model, column, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return json.loads(done.stdout.strip().splitlines()[-1])


def imported() -> float:
    """Seconds of CPU time that `import torchair` adds to `import torch`."""
    text = "import time, torch; t = time.process_time(); import torchair; print(time.process_time() - t)"
    command = [sys.executable, "-c", text]
    made = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(IMPORTS)]
    return median(float(each.stdout) for each in made)


def show(model: str, figures: dict[str, float], device: str, columns: Sequence[Column]) -> None:
    """A row for each column, as soon as the model is done."""
    states = ("cold", "warm", "swap")
    rows = [
        (column.title, *(report.duration(figures.get(f"{column.name}.{state}")) for state in states))
        for column in columns
    ]
    title = f"startup of {model} on {device}: torch.compile to first result"
    heads = ("how", "cold", "warm", "better program there, cold")
    report.console.print(table(heads, rows, figures=True, title=title))


def first_result(model_name: str, column_name: str, device: str) -> dict[str, float]:
    """Seconds from `torch.compile` to a first result that equals eager's, and to the better program, whose
    result must be equal too.
    """
    model, column = BY_NAME[model_name], COLUMN_BY_NAME[column_name]
    with torch.no_grad():
        module, feed = model.make(device), model.feed(device)
        want = snapshot(module(**feed))
        wait(device)
        start = time.perf_counter()
        call = column.make(module, False)
        result = call(**feed)
        wait(device)
        seconds = time.perf_counter() - start
        problem = why_unequal(snapshot(result), want, model.tolerance)
        column.settle()
        swap = time.perf_counter() - start
        later = snapshot(call(**model.feed(device)))
        problem = problem or why_unequal(later, want, model.tolerance)
    if problem:
        raise RuntimeError(problem)
    return {"seconds": seconds, "swap": swap}


if __name__ == "__main__":
    print(json.dumps(first_result(*sys.argv[1:4])))
