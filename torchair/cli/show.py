"""Run `python -m torchair show model.air`: describe a graph file."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from torchair.backend.export.loader import load_air
from torchair.core import dtypes
from torchair.core.text_table import text_lines


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = "Shows the signature and the ops of a graph file."
    parser.add_argument("file", metavar="MODEL.air", help="a file written by torchair.dynamo_export")


def run(given: argparse.Namespace) -> int:
    """Print the description and return the exit status."""
    model = load_air(Path(given.file))
    rows = [
        (each.title, dtypes.BY_RUNTIME[each.dtype].name, ", ".join(map(str, each.sizes)))
        for each in model.form.inputs
        if each.at
    ]
    print("\n".join(text_lines(("input", "type", "sizes"), rows)))
    counts = Counter(op.type for op in model.graph.ops)
    print("\n".join(text_lines(("op", "how many"), counts.most_common())))
    print(f"{len(model.graph.ops)} ops, {len(model.weights)} weights with {model.weight_bytes} bytes")
    return 0
