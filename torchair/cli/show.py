"""`python -m torchair show model.air`: what is in a graph file."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from torchair.backend.export.loader import load_air
from torchair.core import dtypes
from torchair.core.text_table import text_lines


def declare(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Says how a graph file is called, and which ops it has."
    parser.add_argument("file", metavar="MODEL.air", help="what torchair.dynamo_export has written")


def run(given: argparse.Namespace) -> int:
    """Show it; the exit status."""
    model = load_air(Path(given.file))
    rows = [
        (each.title, dtypes.BY_RUNTIME[each.dtype].name, ", ".join(map(str, each.sizes)))
        for each in model.form.inputs
        if each.at
    ]
    print("\n".join(text_lines(("input", "type", "sizes"), rows)))
    counts = Counter(op.type for op in model.graph.ops)
    print("\n".join(text_lines(("op", "how many"), counts.most_common())))
    print(f"{len(model.graph.ops)} ops, {len(model.weights)} weights of {model.weight_bytes} bytes")
    return 0
