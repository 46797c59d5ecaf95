"""Run `python -m torchair.tools.converter_test [PREFIX]`: compare declared cases of converters with eager.

Name modules with user-defined converters with `--load`. The exit status is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import torchair.convert.special.declared_cases  # noqa: F401 - fills the table of built-in cases
from torchair.backend.diagnose.converter_cases import run_declared

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torchair.tools.converter_test", description="Run declared cases of converters."
    )
    parser.add_argument("prefix", nargs="?", default="", help="run only ops with this prefix: aten.add, add")
    parser.add_argument(
        "--load", action="append", default=[], metavar="MODULE", help="import this module first"
    )
    parser.add_argument("--codegen", default="eager", choices=("eager", "reference", "inductor"))
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    given = parser.parse_args(arguments)
    for module in given.load:
        importlib.import_module(module)
    outcomes = run_declared(given.prefix, codegen=given.codegen, dynamic=given.dynamic, tell=print)
    if not outcomes:
        print(f"no declared case has a name that starts with {given.prefix!r}", file=sys.stderr)
    return int(not outcomes or any(outcome.why for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
