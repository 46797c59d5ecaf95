"""Share the arguments and the file errors of the commands in this package."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path


def make_parser(module: str, does: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments `input`, `-o` and `--merge-gap`."""
    program = f"python -m torchair.tools.gegraph_check.{module}"
    parser = argparse.ArgumentParser(prog=program, description=does)
    parser.add_argument("input", help="a trace in Chrome's JSON format")
    parser.add_argument("-o", "--output", default=None, help="output file; the default is next to the input")
    parser.add_argument(
        "--merge-gap",
        type=float,
        default=0.0,
        help="time to leave between a stream and the tasks of a stream that continues it",
    )
    return parser


def path_or_none(path: str | Path | None) -> Path | None:
    """Return the path, or None."""
    return None if path is None else Path(path)


@contextlib.contextmanager
def open_trace(path: str | Path) -> Iterator[Path]:
    """Yield the file to read; exit with status 1 if it is missing or is not a trace."""
    if not Path(path).is_file():
        print(f"there is no file {path}")
        raise SystemExit(1)
    try:
        yield Path(path)
    except ValueError as error:
        print(f"cannot read {path} as a trace: {error}")
        raise SystemExit(1) from error
