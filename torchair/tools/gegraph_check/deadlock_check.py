"""Run `python -m torchair.tools.gegraph_check.deadlock_check TRACE`: find kernels that may deadlock."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torchair.debug.traces.deadlock import Conflict, check_filtered
from torchair.tools.gegraph_check.command import make_parser, open_trace, path_or_none

__all__ = ["deadlock_check", "main"]


def deadlock_check(
    input_path: str | Path, output_path: str | Path | None, aivec_total: int, merge_gap: float = 0.0
) -> list[Conflict]:
    """Find pairs of tasks that may starve each other of cores, and print them.

    Args:
        input_path: Path of a trace in Chrome's JSON format.
        output_path: Path of a trace that marks the pairs, written if there are any; None is
            `<base>_deadlock_check<ext>`.
        aivec_total: Number of vector cores of the device.
        merge_gap: Time to leave between a stream and the tasks of a stream that continues it.

    Returns:
        The pairs.
    """
    with open_trace(input_path) as path:
        return check_filtered(path, aivec_total, path_or_none(output_path), merge_gap)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = make_parser("deadlock_check", "Find kernels that may starve each other.")
    parser.add_argument("--aivec-total", type=int, default=48, help="number of vector cores of the device")
    given = parser.parse_args(arguments)
    deadlock_check(given.input, given.output, given.aivec_total, given.merge_gap)
    return 0


if __name__ == "__main__":
    sys.exit(main())
