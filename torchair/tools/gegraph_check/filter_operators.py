"""Run `python -m torchair.tools.gegraph_check.filter_operators TRACE`: keep ordering and communication."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torchair.debug.traces.deadlock import filter_trace
from torchair.tools.gegraph_check.command import make_parser, open_trace, path_or_none

__all__ = ["filter_comm_ops", "main"]


def filter_comm_ops(input_path: str | Path, output_path: str | Path | None, merge_gap: float = 0.0) -> str:
    """Keep the synchronization and communication tasks of a trace.

    Args:
        input_path: Path of a trace in Chrome's JSON format.
        output_path: Path of the new file; None is `<base>_filtered<ext>`.
        merge_gap: Time to leave between a stream and the tasks of a stream that continues it.

    Returns:
        The path of the new file.
    """
    with open_trace(input_path) as path:
        return str(filter_trace(path, path_or_none(output_path), merge_gap))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = make_parser("filter_operators", "Keep synchronization and communication tasks.").parse_args(
        arguments
    )
    print(filter_comm_ops(given.input, given.output, given.merge_gap))
    return 0


if __name__ == "__main__":
    sys.exit(main())
