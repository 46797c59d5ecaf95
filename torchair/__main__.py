"""Run `python -m torchair COMMAND`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from torchair.cli import cache, codegen, compare, run, show, sim
from torchair.core.errors import AirError

COMMANDS = {
    "cache": (cache, "manage the entries of cache_compile"),
    "codegen": (codegen, "generate Python builders for ops that C++ headers declare"),
    "compare": (compare, "find the source of wrong numbers"),
    "run": (run, "run a graph file"),
    "show": (show, "describe a graph file"),
    "sim": (sim, "run an NPU script on a simulated device"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; 2 means that the command failed."""
    parser = argparse.ArgumentParser(prog="python -m torchair", description="Command line tools of torchair.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        module.declare(command)
        command.set_defaults(run=module.run)
    given, others = parser.parse_known_args(arguments)
    if others:
        # argparse accepts positional names in one place only, and returns those after an option as unknown.
        if "names" not in given or any(word.startswith("-") for word in others):
            parser.error(f"unrecognized arguments: {' '.join(others)}")
        given.names = [*given.names, *others]
    try:
        return given.run(given)
    except AirError as error:
        print(error, file=sys.stderr)
    except Exception:
        # An error in the user's script or model: status 1 would mean that the comparison found a difference.
        traceback.print_exc()
    return 2


if __name__ == "__main__":
    sys.exit(main())
