"""Run `python -m torchair.tools.gegraph_check.align_trace TRACE`: end each wait when its record ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torchair.debug.traces.align import align_trace
from torchair.tools.gegraph_check.command import make_parser, open_trace, path_or_none

__all__ = ["align_trace_json", "main"]


def align_trace_json(input: str | Path, output: str | Path | None, merge_gap: float = 0.0) -> str:
    """Align the times of a trace: each wait ends when its record ends.

    Args:
        input: Path of a trace in Chrome's JSON format.
        output: Path of the new file; None is the name of the input with suffix `.aligned.json`.
        merge_gap: Time to leave between a stream and the tasks of a stream that continues it.

    Returns:
        The path of the new file.
    """
    with open_trace(input) as path:
        return str(align_trace(path, path_or_none(output), merge_gap))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = make_parser("align_trace", "End each wait when its record ends.").parse_args(arguments)
    print(align_trace_json(given.input, given.output, given.merge_gap))
    return 0


if __name__ == "__main__":
    sys.exit(main())
