"""Report the result of a comparison, as data and as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from torchair.compare.base.culprit import Culprit
from torchair.compare.base.tolerances import Errors
from torchair.compare.stage_comparison import StageRow
from torchair.core.fingerprint.atomic_files import PRIVATE_MODE
from torchair.core.text_table import as_text, table
from torchair.debug.dumps.files import write_text

WIDTH = 120


@dataclass(frozen=True)
class Finding:
    """The first wrong node: its place in the graph and in the model, the wrong stage, and the culprit."""

    graph: str
    stage: str
    kind: str  # kind of the stage
    culprit: Culprit
    errors: Errors
    node: str = ""
    op: str = ""
    module: str = ""
    source: str = ""
    nodes: tuple[str, ...] = ()  # the calls that reproduce the mismatch
    eager: Errors | None = None  # error of eager against the float64 reference, if that was computed

    def lines(self) -> list[str]:
        """Return the finding as lines of text."""
        fields = {
            "stage": f"{self.stage}, in {self.graph}",
            "culprit": str(self.culprit),
            "why": self.culprit.why,
            "node": f"{self.node} = {self.op}" if self.node else "",
            "module": self.module,
            "at": self.source,
            "errors": str(self.errors),
            "eager": "" if self.eager is None else f"{self.eager} from the float64 reference",
        }
        return [f"  {key:<8} {text}" for key, text in fields.items() if text]


@dataclass
class Comparison:
    """Result of `compare`. Printing it shows the tables."""

    stages: list[StageRow] = field(default_factory=list[StageRow])
    first: Finding | None = None
    script: str = ""  # a script that reproduces the mismatch; empty if there is none
    against: str = "eager"
    notes: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether every stage is within tolerance."""
        return self.first is None

    def save(self, path: str | Path) -> Path:
        """Write the script that reproduces the mismatch, else the report. Only the owner can read it."""
        path = Path(path)
        write_text(path, self.script or f'"""{self}"""\n', PRIVATE_MODE)
        path.chmod(PRIVATE_MODE)
        return path

    def __str__(self) -> str:
        head = "float64" if self.against == "float64" else "eager"
        columns = ["graph", "stage", "absolute", "relative", "ulp", "cosine", "verdict"]
        shows_eager = self.against == "float64"
        columns[2:2] = ["eager's"] if shows_eager else []
        rows = [_cells(row, shows_eager) for row in self.stages]
        shown = table(columns, rows, title=f"Stages against {head}", title_justify="left")
        return as_text(shown, width=WIDTH) + "\n".join([self.verdict(), *self.notes]) + "\n"

    def verdict(self) -> str:
        """Return the result in a few lines."""
        if self.first is None:
            return f"equal: {len(self.stages)} stages are within tolerance of {self.against}"
        return "\n".join(["differs: the first wrong node", *self.first.lines()])


def _cells(row: StageRow, shows_eager: bool) -> list[str]:
    errors = row.errors
    cells = [row.graph, row.stage]
    if shows_eager:
        cells.append("" if row.eager is None else f"{row.eager.max_absolute:.3g}")
    if errors.text:
        return [*cells, errors.text, "", "", "", "WRONG"]
    numbers = [f"{errors.max_absolute:.3g}", f"{errors.max_relative:.3g}", f"{errors.ulp:.3g}"]
    return [*cells, *numbers, f"{errors.cosine:.6f}", "ok" if row.ok else "WRONG"]


def module_of(node: fx.Node | None) -> str:
    """Return the path of the module that a node belongs to: `model.layers.0.mlp`."""
    stack: dict[str, Any] = {} if node is None else node.meta.get("nn_module_stack") or {}
    entries = list(stack.values())
    path = str(entries[-1][0]) if entries else ""
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\['([^']+)'\]|\[(\d+)\]", lambda m: f".{m.group(1) or m.group(2)}", path)
    return path.removeprefix("L").removeprefix(".").partition(".")[2] if path.startswith("L") else path
