"""`python -m torchair.tools.converter_test [PREFIX]`: run the declared cases of converters against eager.

Modules with converters of your own are named with `--load`; the exit status is 1 when a case fails.
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
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torchair.tools.converter_test", description="Run declared cases of converters."
    )
    parser.add_argument("prefix", nargs="?", default="", help="only ops whose name starts so: aten.add, add")
    parser.add_argument("--load", action="append", default=[], metavar="MODULE", help="import this first")
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
