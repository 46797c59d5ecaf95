"""What the commands of this folder share: their arguments, and how they refuse a file."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path


def arguments_of(module: str, does: str) -> argparse.ArgumentParser:
    """`input`, `-o` and `--merge-gap`."""
    program = f"python -m torchair.tools.gegraph_check.{module}"
    parser = argparse.ArgumentParser(prog=program, description=does)
    parser.add_argument("input", help="a trace: Chrome's JSON")
    parser.add_argument("-o", "--output", default=None, help="where to write; by default beside the input")
    parser.add_argument(
        "--merge-gap",
        type=float,
        default=0.0,
        help="time between a stream and the tasks of one that continues it",
    )
    return parser


def path_or_none(path: str | Path | None) -> Path | None:
    """The path, if there is one."""
    return None if path is None else Path(path)


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[Path]:
    """The file to read; the process ends with status 1 where it is missing, or is no trace."""
    if not Path(path).is_file():
        print(f"there is no file {path}")
        raise SystemExit(1)
    try:
        yield Path(path)
    except ValueError as error:
        print(f"{path} is no trace that can be read: {error}")
        raise SystemExit(1) from error
