"""`python -m benchmarks cpu cuda overhead replay startup scaling streams`: run suites, print tables.

Ends with 1 if any result differs from eager's, or a bound is not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import overhead, replay, report, scaling, speed, startup, streams
from benchmarks.columns import COLUMNS, KEPT
from benchmarks.models import MODELS
from benchmarks.options import Options
from torchair.core.diagnostics import STRICT

SUITES: dict[str, Callable[[Options], report.Suite]] = {
    "cpu": lambda options: speed.run("cpu", options),
    "cuda": lambda options: speed.run("cuda", options),
    "overhead": overhead.run,
    "replay": replay.run,
    "startup": startup.run,
    "scaling": scaling.run,
    "streams": streams.run,
}


def columns() -> list[str]:
    """The columns of all suites."""
    return list(dict.fromkeys([column.name for column in (*COLUMNS, *KEPT)] + list(overhead.BACKENDS)))


def parse(arguments: list[str]) -> tuple[list[str], Options]:
    """The suites to run, and how."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--json", type=Path, help="write all figures, in seconds, to this file")
    parser.add_argument("--rounds", type=int, help="how often each column is sampled (default 15, quick 5)")
    parser.add_argument("--models", nargs="+", choices=[m.name for m in MODELS], help="only these models")
    parser.add_argument("--backends", nargs="+", choices=columns(), help="only these columns")
    parser.add_argument("--quick", action="store_true", help="short samples and few rounds")
    given = parser.parse_args(arguments)
    for suite in {"cuda", "streams"} & set(given.suites):
        if not torch.cuda.is_available():
            parser.error(f"suite {suite} needs a CUDA device, and torch sees none here")
    return given.suites, Options(
        rounds=given.rounds or (5 if given.quick else 15),
        sample_seconds=0.01 if given.quick else 0.05,
        models=given.models,
        backends=given.backends,
        json=given.json,
    )


def main(arguments: list[str]) -> int:
    names, options = parse(arguments)
    # A figure of something that is less than promised would be a lie.
    os.environ.setdefault(STRICT, "1")
    suites = [SUITES[name](options) for name in names]
    if options.json is not None:
        report.write_json(options.json, suites)
    report.print_failures(suites)
    return int(any(suite.failures for suite in suites))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
