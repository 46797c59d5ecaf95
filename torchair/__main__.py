"""`python -m torchair COMMAND`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from torchair.cli import cache, codegen, compare, run, show, sim
from torchair.core.errors import AirError

COMMANDS = {
    "cache": (cache, "look after what cache_compile has kept"),
    "codegen": (codegen, "write builders of the ops that C++ headers declare"),
    "compare": (compare, "find out where wrong numbers come from"),
    "run": (run, "run a graph file"),
    "show": (show, "say what is in a graph file"),
    "sim": (sim, "run a script for the NPU on a simulated device"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 2 for a command that failed."""
    parser = argparse.ArgumentParser(prog="python -m torchair", description="Commands around torchair.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        module.declare(command)
        command.set_defaults(run=module.run)
    given, others = parser.parse_known_args(arguments)
    if others:
        # argparse takes names in one place only, and leaves those that an option parts from it.
        if "names" not in given or any(word.startswith("-") for word in others):
            parser.error(f"unrecognized arguments: {' '.join(others)}")
        given.names = [*given.names, *others]
    try:
        return given.run(given)
    except AirError as error:
        print(error, file=sys.stderr)
    except Exception:
        # The user's own script or model: 1 would say that it was compared.
        traceback.print_exc()
    return 2


if __name__ == "__main__":
    sys.exit(main())
